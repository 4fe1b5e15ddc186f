"""The Trainer with our mixin: is it our own loop bit for bit, for pictures, texts and language models?"""

import copy
import warnings

import pytest
import snippets
import torch
import transformers
from torch.utils.data import SequentialSampler
from transformers import Trainer, TrainerCallback, TrainingArguments

from esam import METHODS, MSAM, SAM
from esam.factory import OptimizerFactory
from esam.integrations.common import sharpness_aware
from esam.integrations.huggingface import SharpnessAware, losses_of
from esam.integrations.trainer import SharpnessAwareTrainer

SIZE, SAMPLES = 4, 18  # five batches, the last of two
VOCABULARY, LENGTH = 23, 7


def bert():
    config = transformers.BertConfig(
        vocab_size=VOCABULARY, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
        max_position_embeddings=LENGTH, num_labels=3, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return transformers.BertForSequenceClassification(config)


def vit():
    config = transformers.ViTConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, image_size=8, patch_size=4,
        num_labels=3, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return transformers.ViTForImageClassification(config)


def gpt2():
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=8, n_layer=1, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


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
        if kind == "bert":
            rows.append({"input_ids": ids, "labels": label})
        else:  # sequences of several lengths
            labels = ids.clone()
            labels[LENGTH - number % 4 :] = -100
            rows.append({"input_ids": ids, "labels": labels})
    return rows


class Sequential(Trainer):
    """The samples in their order, so that another loop can follow."""

    def _get_train_sampler(self, *args):
        return SequentialSampler(self.train_dataset)


class Ours(SharpnessAware, Sequential):
    method, settings = "sam", {}

    def sharpness(self, base, model):
        return METHODS[self.method](base, model, seed=3, **self.settings)


def arguments(folder, **settings):
    default = {
        "output_dir": str(folder), "use_cpu": True, "report_to": [], "disable_tqdm": True, "num_train_epochs": 1,
        "per_device_train_batch_size": SIZE, "learning_rate": 1e-2, "lr_scheduler_type": "linear",
        "save_strategy": "no", "logging_steps": 1, "dataloader_pin_memory": False, "max_grad_norm": 0.5,
        "weight_decay": 0.01,
    }  # fmt: skip
    return TrainingArguments(**{**default, **settings})


def trainer(kind, folder, method="sam", cls=Ours, model=None, callbacks=None, compute_loss_func=None, **settings):
    torch.manual_seed(0)
    model = MODELS[kind]() if model is None else model
    made = cls(
        model,
        arguments(folder, **settings),
        train_dataset=samples(kind),
        callbacks=callbacks,
        compute_loss_func=compute_loss_func,
    )
    made.method = method
    return made


def by_hand(kind, folder, method="sam", *, window=1, loss_of=None, autocast=False, **settings):
    """Train by our phases; optimizer and schedule are made as the Trainer makes them."""
    maker = trainer(kind, folder, method, cls=Sequential, **settings)
    model = maker.model.train()
    base = maker.create_optimizer()
    optimizer = METHODS[method](base, model, seed=3)
    batches = [transformers.default_data_collator(rows) for rows in chunks(samples(kind), SIZE)]
    windows = list(chunks(batches, window))
    scheduler = transformers.get_scheduler("linear", optimizer, 0, len(windows))
    losses = []
    for micro in windows:
        whole = sum(len(batch["labels"]) for batch in micro)
        items = sum(counted(maker, batch["labels"]) for batch in micro)
        for batch in micro:

            def closure(keep, batch=batch, whole=whole, items=items):
                part = {name: value[keep] for name, value in batch.items()}
                with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                    if optimizer.needs_losses:
                        logits = model(**part).logits.float()
                        return losses_of(logits, part["labels"], shifted=kind == "gpt2")
                    share = len(part["labels"]) / whole
                    loss = (loss_of or tokens_mean)(model, part, items if share == 1 else items * share)
                    return loss

            optimizer.accumulate(closure, batch_size=len(batch["labels"]))
        losses.append(float(optimizer.gradient()))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        scheduler.step()
    return model, losses


def tokens_mean(model, part, items):
    return model(**part, num_items_in_batch=items).loss


def counted(maker, labels):
    """Count labels as the Trainer does, which knows for some causal models only that the first is not predicted."""
    labels = labels[:, 1:] if maker._loss_shifts_labels else labels
    return labels.ne(-100).sum()


def chunks(rows, size):
    return (rows[i : i + size] for i in range(0, len(rows), size))


def assert_same(a, b):
    torch.testing.assert_close(a.state_dict(), b.state_dict(), rtol=0, atol=0)


# Our own loop ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("method", ["base", "sam", "esam", "slicesam"])
def test_a_trainer_takes_our_loops_steps_bit_for_bit(kind, method, tmp_path):
    expected, losses = by_hand(kind, tmp_path, method)
    made = trainer(kind, tmp_path, method)
    made.train()
    assert_same(made.model, expected)
    logged = [entry["loss"] for entry in made.state.log_history if "loss" in entry]
    assert logged == pytest.approx(losses, rel=1e-3)  # the Trainer rounds what it logs


@pytest.mark.parametrize("method", ["sam", "esam", "slicesam", "looksam"])
def test_an_accumulated_batch_is_divided_by_the_tokens_of_all_its_micro_batches(method, tmp_path):
    """Windows of two: the last has one micro-batch, of two samples."""
    expected, _ = by_hand("gpt2", tmp_path, method, window=2)
    made = trainer("gpt2", tmp_path, method, gradient_accumulation_steps=2)
    made.train()
    assert_same(made.model, expected)
    assert made.state.global_step == 3


@pytest.mark.parametrize("window", [1, 2])
def test_the_base_under_the_mixin_is_the_plain_trainer(window, tmp_path):
    """To rounding: the Trainer sums micro-batches that are divided already, we divide their sum. Float32, AdamW."""
    plain = trainer("gpt2", tmp_path, cls=Sequential, gradient_accumulation_steps=window)
    ours = trainer("gpt2", tmp_path, "base", gradient_accumulation_steps=window)
    for made in (plain, ours):
        made.train()
    torch.testing.assert_close(ours.model.state_dict(), plain.model.state_dict(), rtol=0, atol=1e-4)


@pytest.mark.parametrize("method", ["sam", "esam"])
def test_bf16_is_autocast_in_every_pass(method, tmp_path):
    expected, _ = by_hand("vit", tmp_path, method, autocast=True)
    made = trainer("vit", tmp_path, method, bf16=True)
    made.train()
    torch.testing.assert_close(made.model.state_dict(), expected.state_dict(), rtol=0, atol=2e-3)  # bf16: 8 bits


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
        control.should_training_stop = state.global_step == 2
        control.should_save = control.should_training_stop
        return control


@pytest.mark.parametrize("method", ["looksam", "esam"])
def test_a_resumed_training_is_the_one_that_went_on_bit_for_bit(method, tmp_path):
    whole, first, second = (
        trainer("bert", tmp_path / name, method, callbacks=[Stop()] if name == "first" else None)
        for name in ("whole", "first", "second")
    )
    whole.train()
    first.train()
    second.train(resume_from_checkpoint=str(tmp_path / "first" / "checkpoint-2"))
    assert_same(second.model, whole.model)


# Custom losses and frozen weights -------------------------------------------------------------------------------------


def test_a_loss_of_ones_own_as_in_preference_tuning(tmp_path):
    """The first half of each pair of logits is chosen, the second refused: -log sigmoid of the difference."""

    class Preferring(Ours):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            labels = inputs.pop("labels")
            logits = model(**inputs).logits
            margin = logits.gather(1, labels[:, None]) - logits.gather(1, (labels[:, None] + 1) % 3)
            return -torch.nn.functional.logsigmoid(margin).mean()

    made = trainer("bert", tmp_path, "slicesam", cls=Preferring)
    before = copy.deepcopy(made.model.state_dict())
    made.train()
    assert made.state.global_step == 5
    assert any(not torch.equal(v, before[k]) for k, v in made.model.state_dict().items())


def test_lora_trains_its_adapters_and_leaves_the_frozen_weights(tmp_path):
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    config = peft.LoraConfig(r=2, target_modules=["query", "value"], lora_dropout=0.0, task_type="SEQ_CLS")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = peft.get_peft_model(bert(), config)
    before = copy.deepcopy(model.state_dict())
    made = trainer("bert", tmp_path, model=model)
    made.train()
    moved = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert any("lora" in name for name in moved)
    assert all("lora" in name or "classifier" in name for name in moved)


# Ready-made, by name -------------------------------------------------------------------------------------------------


def test_the_ready_made_trainer_takes_a_methods_steps_and_refuses_a_name_that_is_none(tmp_path):
    class InOrder(SharpnessAwareTrainer):
        _get_train_sampler = Sequential._get_train_sampler

    torch.manual_seed(0)
    settings = {"rho": 0.1, "seed": 3}
    made = InOrder(bert(), arguments(tmp_path), train_dataset=samples("bert"), method="looksam", settings=settings)
    made.train()
    ours = trainer("bert", tmp_path, "looksam")
    ours.settings = {"rho": 0.1}
    ours.train()
    for a, b in zip(made.model.parameters(), ours.model.parameters(), strict=True):
        assert torch.equal(a, b)
    with pytest.raises(ValueError, match="there is no method 'sma'"):
        SharpnessAwareTrainer(bert(), arguments(tmp_path), method="sma")


def test_an_optimizer_may_be_made_by_a_factory_as_muon_is(tmp_path):
    chosen = {"method": "gsam", "base": "adamw", "lr": 1e-3, "weight_decay": 0.1, "rho": 0.2, "alpha": 0.3}
    made = SharpnessAwareTrainer(
        bert(),
        arguments(tmp_path),
        train_dataset=samples("bert"),
        optimizer_cls_and_kwargs=(OptimizerFactory, chosen),
    )
    made.train()
    optimizer = sharpness_aware(made.optimizer)
    assert (type(optimizer).__name__, optimizer.rho, optimizer.alpha, optimizer.steps) == ("GSAM", 0.2, 0.3, 5)
    assert [g["weight_decay"] for g in optimizer.param_groups] == [0.1, 0.0]


def test_an_optimizer_of_one_pass_trains_in_a_plain_trainer_as_its_method_does_in_ours(tmp_path):
    torch.manual_seed(0)
    plain = Sequential(
        bert(),
        arguments(tmp_path),
        train_dataset=samples("bert"),
        optimizer_cls_and_kwargs=(MSAM, {"base": torch.optim.AdamW, "lr": 1e-2, "rho": 0.5}),
    )
    start = copy.deepcopy(plain.model.state_dict())
    plain.train()
    plain.optimizer.optimizer.eval()
    ours = trainer("bert", tmp_path, "msam")
    ours.settings = {"rho": 0.5}
    ours.train()
    for (name, a), b in zip(plain.model.named_parameters(), ours.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)  # float32; the Trainer's own AdamW is a fused one
        assert not torch.equal(a, start[name])


def test_preference_pairs_stay_together(tmp_path):
    """TRL's DPOTrainer, known by its name, stacks what was chosen upon what was rejected."""

    class DPOTrainer(Sequential):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            seen.append(inputs["input_ids"])
            scores = model(input_ids=inputs["input_ids"]).logits[:, 0]
            chosen, rejected = scores.chunk(2)
            return -torch.nn.functional.logsigmoid(chosen - rejected).mean()

    class Pairs(SharpnessAware, DPOTrainer):
        sharpness = staticmethod(lambda base, model: METHODS["slicesam"](base, model, share=0.5, seed=3))

    def collated(rows):  # sample n is rejected in favour of its reverse
        ids = torch.stack([row["input_ids"] for row in rows])
        return {"input_ids": torch.cat([ids, ids.flip(1)])}

    seen = []
    torch.manual_seed(0)
    settings = {"remove_unused_columns": False}
    made = Pairs(bert(), arguments(tmp_path, **settings), train_dataset=samples("bert"), data_collator=collated)
    made.train()
    assert {len(ids) for ids in seen} >= {4}  # two pairs of the four
    for ids in seen:
        chosen, rejected = ids.chunk(2)
        assert torch.equal(chosen, rejected.flip(1))


# Losses of single samples ---------------------------------------------------------------------------------------------


def test_a_sequences_loss_is_the_mean_over_the_tokens_that_it_predicts():
    logits, labels = torch.randn(2, 4, 5), torch.tensor([[1, 2, 3, 4], [1, 2, -100, -100]])
    found = losses_of(logits, labels, shifted=True)
    log = logits.log_softmax(-1)
    by_hand = [-(log[0, 0, 2] + log[0, 1, 3] + log[0, 2, 4]) / 3, -log[1, 0, 2]]
    torch.testing.assert_close(found, torch.stack(by_hand))


def test_classification_regression_and_several_labels_have_their_own_losses():
    logits = torch.tensor([[0.0, 2.0], [1.0, 1.0]])
    log = logits.log_softmax(-1)
    torch.testing.assert_close(losses_of(logits, torch.tensor([1, 0])), torch.stack([-log[0, 1], -log[1, 0]]))
    assert losses_of(torch.tensor([[1.0], [3.0]]), torch.tensor([0.0, 1.0])).tolist() == [1.0, 4.0]
    assert losses_of(logits, torch.tensor([[0.0, 0.0], [1.0, 3.0]])).tolist() == [2.0, 2.0]
    several = losses_of(torch.zeros(2, 3), torch.ones(2, 3), several=True)
    torch.testing.assert_close(several, torch.full((2,), 2.0).log())


# Errors ---------------------------------------------------------------------------------------------------------------


def test_the_mixin_behind_the_trainer_is_refused_where_the_class_is_written():
    with pytest.raises(ValueError, match=r"write class Wrong\(SharpnessAware, Trainer\)"):

        class Wrong(Trainer, SharpnessAware):
            pass


def test_a_trainer_without_a_method_says_how_to_name_one(tmp_path):
    class Nameless(SharpnessAware, Trainer):
        pass

    with pytest.raises(ValueError, match=r"sharpness = staticmethod\(lambda base, model: esam.SAM"):
        Nameless(bert(), arguments(tmp_path), train_dataset=samples("bert")).train()


@pytest.mark.parametrize("settings", [{"label_smoothing_factor": 0.1}, {"compute_loss_func": lambda *_, **__: None}])
def test_a_ranking_refuses_losses_that_it_cannot_see_one_by_one(settings, tmp_path):
    with pytest.raises(
        ValueError, match=r"override sample_losses\(model, inputs\), or choose a method that ranks none"
    ):
        trainer("bert", tmp_path, "esam", **settings).train()


def test_something_else_than_our_optimizer_is_refused(tmp_path):
    class Other(SharpnessAware, Sequential):
        sharpness = staticmethod(lambda base, model: base)

    with pytest.raises(ValueError, match=r"returned AdamW; return one of esam's optimizers"):
        trainer("bert", tmp_path, cls=Other).train()


def test_the_pages_code_runs(tmp_path):
    scope = {"model": bert(), "arguments": arguments(tmp_path), "dataset": samples("bert")}
    made = snippets.run("trainers.md", scope, under="Hugging Face Trainer")["trainer"]
    assert made.state.global_step == 5 and isinstance(made.optimizer.optimizer, SAM)
