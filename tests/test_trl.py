"""TRL's trainers: do they train and log as they do without us, and do the two rows of a pair stay together?"""

import pytest
import torch
import transformers

pytest.importorskip("trl")
import trl
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers

from esam.integrations.huggingface import SharpnessAwareTrainer

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # theirs
WORDS = ["<pad>", "<eos>", *(f"w{n}" for n in range(20))]
SIZE = {"vocab_size": len(WORDS), "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
SIZE |= {"num_attention_heads": 2, "num_key_value_heads": 2, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 1}
COUNTED = ("loss", "num_tokens", "entropy", "rewards/margins", "margin", "accuracy")


def tokenizer():
    words = Tokenizer(models.WordLevel({word: n for n, word in enumerate(WORDS)}, unk_token="<pad>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>")


def text(count, generator):
    return " ".join(WORDS[n] for n in torch.randint(2, len(WORDS), (count,), generator=generator).tolist())


def rows(kind, count=16):
    generator = torch.Generator().manual_seed(1)
    if kind == "SFT":
        return Dataset.from_list([{"text": text(4 + n % 5, generator)} for n in range(count)])
    prompts = [text(3, generator) for _ in range(count)]
    answers = [{"chosen": f" {text(3, generator)}", "rejected": f" {text(2 + n % 3, generator)}"} for n in range(count)]
    return Dataset.from_list([{"prompt": p, **a} for p, a in zip(prompts, answers, strict=True)])


def model(kind):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(max_position_embeddings=32, num_labels=1, **SIZE)
    family = transformers.LlamaForSequenceClassification if kind == "Reward" else transformers.LlamaForCausalLM
    return family(config)


def trained(kind, folder, method=None, settings=None, **config):
    """Train by a trainer of TRL, ours or plain; return its weights and what it logged."""
    theirs = getattr(trl, f"{kind}Trainer")
    ours = None if method is None else type("Ours", (theirs, SharpnessAwareTrainer), {"method": method})
    if ours is not None:
        ours.settings = {"seed": 3, **(settings or {})}
    common = {"use_cpu": True, "report_to": [], "disable_tqdm": True, "save_strategy": "no", "logging_steps": 1}
    common |= {"per_device_train_batch_size": 8, "num_train_epochs": 1, "gradient_checkpointing": False, "bf16": False}
    common |= {"optim": "sgd", "learning_rate": 0.5, "dataloader_pin_memory": False}
    arguments = getattr(trl, f"{kind}Config")(output_dir=str(folder), **{**common, **config})
    reference = {"ref_model": model(kind)} if kind == "DPO" else {}
    made = (ours or theirs)(
        model=model(kind), args=arguments, train_dataset=rows(kind), processing_class=tokenizer(), **reference
    )
    made.train()
    logged = [[entry[name] for name in COUNTED if name in entry] for entry in made.state.log_history[:-1]]
    return list(made.model.parameters()), logged


KINDS = {"SFT": {}, "DPO": {}, "Reward": {}, "DPO, reference first": {"precompute_ref_log_probs": True}}
ACCUMULATED = {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 4}


@pytest.mark.parametrize("kind", KINDS)
def test_preference_pairs_stay_together(kind, tmp_path):
    """A radius of almost nothing: the parts of SliceSAM add up to their own loss only where the right rows meet."""
    weights, logged = trained(kind.split(",")[0], tmp_path, **KINDS[kind])
    ours, told = trained(kind.split(",")[0], tmp_path, "slicesam", {"rho": 1e-9}, **KINDS[kind])
    for a, b in zip(ours, weights, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)  # float32, sums in another order
    assert [entry[:2] for entry in told] == [pytest.approx(entry[:2], rel=1e-3) for entry in logged]


@pytest.mark.parametrize("kind", ["SFT", "DPO"])
def test_a_sharpness_aware_trainer_logs_what_the_plain_one_does(kind, tmp_path):
    """With rho = 0 in every step, and with rho > 0 in the first: later passes count neither tokens nor rewards."""
    weights, logged = trained(kind, tmp_path)
    same, told = trained(kind, tmp_path, "sam", {"rho": 0.0})
    assert all(torch.equal(a, b) for a, b in zip(same, weights, strict=True)) and told == logged
    moved, told = trained(kind, tmp_path, "sam", {"rho": 0.05})
    assert told[0] == pytest.approx(logged[0], rel=1e-5)
    assert told[1][1] == logged[1][1], "tokens are counted once"
    assert not all(torch.equal(a, b) for a, b in zip(moved, weights, strict=True))


def test_micro_batches_are_one_step(tmp_path):
    (weights, logged), (same, told) = trained("SFT", tmp_path, "sam"), trained("SFT", tmp_path, "sam", **ACCUMULATED)
    for a, b in zip(same, weights, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)  # float32, sums in another order
    assert [entry[:2] for entry in told] == [pytest.approx(entry[:2], rel=1e-3) for entry in logged]
