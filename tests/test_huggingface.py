"""Hugging Face's Trainer: are its steps our own loop's, bit for bit, for pictures, texts and language models?"""

import copy
import warnings

import pytest
import snippets
import torch
import transformers
from our_loop import assert_same
from torch.utils.data import SequentialSampler
from transformers import Trainer, TrainerCallback, TrainingArguments

from esam import METHODS, MSAM, SAM
from esam.factory import OptimizerFactory
from esam.integrations.common import sharpness_aware
from esam.integrations.huggingface import SharpnessAwareTrainer, losses_of

SIZE, SAMPLES = 4, 18  # five batches, the last of two
VOCABULARY, LENGTH = 23, 7
SMALL = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8, "num_labels": 3}
FIXED = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def bert():
    config = transformers.BertConfig(vocab_size=VOCABULARY, max_position_embeddings=LENGTH, **SMALL, **FIXED)
    return transformers.BertForSequenceClassification(config)


def vit():
    return transformers.ViTForImageClassification(transformers.ViTConfig(image_size=8, patch_size=4, **SMALL, **FIXED))


def gpt2():
    size = {"vocab_size": VOCABULARY, "n_positions": LENGTH, "n_embd": 8, "n_layer": 1, "n_head": 2}
    fixed = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 0}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**size, **fixed))


MODELS = {"bert": bert, "vit": vit, "gpt2": gpt2}


def samples(kind):
    generator = torch.Generator().manual_seed(1)
    rows = []
    for number in range(SAMPLES):
        label = int(torch.randint(0, 3, (), generator=generator))
        if kind == "vit":
            rows.append({"pixel_values": torch.randn(3, 8, 8, generator=generator), "labels": label})
            continue
        ids = torch.randint(0, VOCABULARY, (LENGTH,), generator=generator)
        if kind == "gpt2":  # sequences of several lengths
            label = ids.clone()
            label[LENGTH - number % 4 :] = -100
        rows.append({"input_ids": ids, "labels": label})
    return rows


class InOrder:
    """The samples in their order, so that another loop can follow."""

    def _get_train_sampler(self, *args):
        return SequentialSampler(self.train_dataset)


class Plain(InOrder, Trainer):
    pass


class Ours(InOrder, SharpnessAwareTrainer):
    pass


def arguments(folder, **settings):
    default = {
        "output_dir": str(folder), "use_cpu": True, "report_to": [], "disable_tqdm": True, "num_train_epochs": 1,
        "per_device_train_batch_size": SIZE, "learning_rate": 1e-2, "lr_scheduler_type": "linear",
        "save_strategy": "no", "logging_steps": 1, "dataloader_pin_memory": False, "max_grad_norm": 0.5,
        "weight_decay": 0.01,
    }  # fmt: skip
    return TrainingArguments(**{**default, **settings})


def trainer(kind, folder, method="sam", cls=Ours, *, model=None, given=None, **settings):
    torch.manual_seed(0)
    given = {"method": method, "settings": {"seed": 3}, **(given or {})} if issubclass(cls, Ours) else given or {}
    model = MODELS[kind]() if model is None else model
    return cls(model, arguments(folder, **settings), train_dataset=samples(kind), **given)


def by_hand(kind, folder, method="sam", *, window=1, loss_of=None, autocast=False):
    """Train by our phases; optimizer and schedule are made as the Trainer makes them."""
    maker = trainer(kind, folder, cls=Plain)
    model = maker.model.train()
    optimizer = METHODS[method](maker.create_optimizer(), model, seed=3)
    batches = [transformers.default_data_collator(rows) for rows in chunks(samples(kind), SIZE)]
    windows = list(chunks(batches, window))
    scheduler = transformers.get_scheduler("linear", optimizer, 0, len(windows))
    losses = []
    for micro in windows:
        samples_of_all = sum(len(batch["labels"]) for batch in micro)
        tokens_of_all = sum(counted(maker, batch["labels"]) for batch in micro)

        def mean_loss(part, whole=samples_of_all, items=tokens_of_all):
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                if optimizer.needs_losses:
                    return losses_of(model(**part).logits.float(), part["labels"], shifted=kind == "gpt2")
                share = len(part["labels"]) / whole
                return (loss_of or tokens_mean)(model, {**part}, items if share == 1 else items * share)

        for batch in micro:
            optimizer.accumulate(mean_loss, batch)
        losses.append(float(optimizer.gradient()))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        scheduler.step()
    return model, losses


def tokens_mean(model, part, items):
    return model(**part, num_items_in_batch=items).loss


def counted(maker, labels):
    """Count labels as the Trainer does, which knows for some causal models only that the first is not predicted."""
    return (labels[:, 1:] if maker._loss_shifts_labels else labels).ne(-100).sum()


def chunks(rows, size):
    return (rows[i : i + size] for i in range(0, len(rows), size))


# Our own loop ---------------------------------------------------------------------------------------------------------


CASES = [("bert", "sam", 1), ("vit", "esam", 1), ("gpt2", "slicesam", 1), ("gpt2", "esam", 2), ("gpt2", "slicesam", 2)]


@pytest.mark.parametrize(("kind", "method", "window"), CASES)
def test_a_trainer_takes_our_loops_steps_bit_for_bit(kind, method, window, tmp_path):
    """Windows of two micro-batches: divided by the tokens of both; the last has one micro-batch, of two samples."""
    expected, losses = by_hand(kind, tmp_path, method, window=window)
    made = trainer(kind, tmp_path, method, gradient_accumulation_steps=window)
    made.train()
    assert_same(made.model, expected)
    logged = [entry["loss"] for entry in made.state.log_history if "loss" in entry]
    assert logged == pytest.approx(losses, rel=1e-3)  # the Trainer rounds what it logs


def test_the_base_is_the_plain_trainer(tmp_path):
    """To rounding: the Trainer sums micro-batches that are divided already, we divide their sum. Float32, AdamW."""
    plain = trainer("gpt2", tmp_path, cls=Plain, gradient_accumulation_steps=2)
    ours = trainer("gpt2", tmp_path, "base", gradient_accumulation_steps=2)
    for made in (plain, ours):
        made.train()
    assert_same(ours.model, plain.model, atol=1e-4)


def test_bf16_is_autocast_in_every_pass(tmp_path):
    expected, _ = by_hand("vit", tmp_path, autocast=True)
    made = trainer("vit", tmp_path, bf16=True)
    made.train()
    assert_same(made.model, expected, atol=2e-3)  # bf16: 8 bits


def test_label_smoothing_pops_the_labels_of_a_copy(tmp_path):
    made = trainer("bert", tmp_path, label_smoothing_factor=0.1)

    def smoothed(model, part, items):
        labels = part.pop("labels")
        return made.label_smoother(model(**part), labels, num_items_in_batch=items)

    expected, _ = by_hand("bert", tmp_path, loss_of=smoothed)
    made.train()
    assert_same(made.model, expected)


class Stop(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = control.should_save = state.global_step == 2
        return control


def test_a_resumed_training_is_the_one_that_went_on_bit_for_bit(tmp_path):
    whole, second = (trainer("bert", tmp_path / name, "looksam") for name in ("whole", "second"))
    first = trainer("bert", tmp_path / "first", "looksam", given={"callbacks": [Stop()]})
    whole.train()
    first.train()
    second.train(resume_from_checkpoint=str(tmp_path / "first" / "checkpoint-2"))
    assert_same(second.model, whole.model)


def test_lora_trains_its_adapters_and_leaves_the_frozen_weights(tmp_path):
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, target_modules=["query", "value"], lora_dropout=0.0, task_type="SEQ_CLS")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = peft.get_peft_model(bert(), config)
    before = copy.deepcopy(model.state_dict())
    trainer("bert", tmp_path, model=model).train()
    moved = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert any("lora" in name for name in moved)
    assert all("lora" in name or "classifier" in name for name in moved)


# Other ways to the optimizer -----------------------------------------------------------------------------------------


def test_an_optimizer_may_be_made_by_a_factory_as_muon_is(tmp_path):
    chosen = {"method": "gsam", "base": "adamw", "lr": 1e-3, "weight_decay": 0.1, "rho": 0.2, "alpha": 0.3}
    made = trainer("bert", tmp_path, given={"optimizer_cls_and_kwargs": (OptimizerFactory, chosen)})
    made.train()
    optimizer = sharpness_aware(made.optimizer)
    assert (type(optimizer).__name__, optimizer.rho, optimizer.alpha, optimizer.steps) == ("GSAM", 0.2, 0.3, 5)
    assert [g["weight_decay"] for g in optimizer.param_groups] == [0.1, 0.0]


def test_an_optimizer_of_one_pass_trains_in_a_plain_trainer_as_its_method_does_in_ours(tmp_path):
    chosen = (MSAM, {"base": torch.optim.AdamW, "lr": 1e-2, "rho": 0.5})
    plain = trainer("bert", tmp_path, cls=Plain, given={"optimizer_cls_and_kwargs": chosen})
    start = copy.deepcopy(plain.model)
    plain.train()
    plain.optimizer.optimizer.eval()
    ours = trainer("bert", tmp_path, "msam", given={"settings": {"rho": 0.5}})
    ours.train()
    for a, b, old in zip(plain.model.parameters(), ours.model.parameters(), start.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)  # float32; the Trainer's own AdamW is a fused one
        assert not torch.equal(a, old)


# Losses of single samples ---------------------------------------------------------------------------------------------


def test_a_sequences_loss_is_the_mean_over_the_tokens_that_it_predicts():
    logits, labels = torch.randn(2, 4, 5), torch.tensor([[1, 2, 3, 4], [1, 2, -100, -100]])
    log = logits.log_softmax(-1)
    expected = [-(log[0, 0, 2] + log[0, 1, 3] + log[0, 2, 4]) / 3, -log[1, 0, 2]]
    torch.testing.assert_close(losses_of(logits, labels, shifted=True), torch.stack(expected))


def test_classification_regression_and_several_labels_have_their_own_losses():
    logits = torch.tensor([[0.0, 2.0], [1.0, 1.0]])
    log = logits.log_softmax(-1)
    torch.testing.assert_close(losses_of(logits, torch.tensor([1, 0])), torch.stack([-log[0, 1], -log[1, 0]]))
    assert losses_of(torch.tensor([[1.0], [3.0]]), torch.tensor([0.0, 1.0])).tolist() == [1.0, 4.0]
    assert losses_of(logits, torch.tensor([[0.0, 0.0], [1.0, 3.0]])).tolist() == [2.0, 2.0]
    several = losses_of(torch.zeros(2, 3), torch.ones(2, 3), several=True)
    torch.testing.assert_close(several, torch.full((2,), 2.0).log())


# Errors ---------------------------------------------------------------------------------------------------------------


def test_a_trainer_whose_own_step_would_be_lost_is_refused_where_the_class_is_written():
    with pytest.raises(ValueError, match=r"write class Wrong\(Plain, SharpnessAwareTrainer\)"):

        class Wrong(SharpnessAwareTrainer, Plain):
            pass


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"method": "esam", "label_smoothing_factor": 0.1}, r"override sample_losses\(model, inputs\)"),
        ({"method": "esam", "given": {"compute_loss_func": lambda *_, **__: None}}, "a method that ranks none"),
        ({"method": "sma"}, "there is no method 'sma'"),
        ({"cls": type("Other", (Ours,), {"sharpness": lambda self, base, model: base})}, "one of esam's optimizers"),
    ],
)
def test_what_cannot_work_is_refused_with_a_remedy(changed, said, tmp_path):
    with pytest.raises(ValueError, match=said):
        trainer("bert", tmp_path, **changed).train()


def test_the_pages_code_runs(tmp_path):
    scope = {"model": bert(), "arguments": arguments(tmp_path), "dataset": samples("bert")}
    made = snippets.run("trainers.md", scope, under="Hugging Face Trainer")["trainer"]
    assert made.state.global_step == 5 and isinstance(made.optimizer.optimizer, SAM)
