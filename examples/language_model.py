"""A small causal language model on Python's own source: micro-batches, clipping, warm-up and bf16, in phases."""

import os
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from esam import SAM


class Model(nn.Module):
    """Bytes in, the next byte out."""

    def __init__(self, width: int = 48, length: int = 32) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        hidden = self.bytes(x) + self.places(torch.arange(x.shape[1]))
        return self.head(self.layers(hidden, mask=mask, is_causal=True))


def text() -> torch.Tensor:
    """Return some text that every Python has."""
    return torch.tensor(list(Path(os.__file__).read_bytes()[:20_000]))


def main(steps: int = 200, micro_batches: int = 2, batch: int = 16, length: int = 32) -> float:
    """Train; return the loss of the last step, in nats a byte."""
    torch.manual_seed(0)
    data, model = text(), Model(length=length)
    base = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)
    optimizer = SAM(base, model, rho=0.05)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=20)
    loss = torch.zeros(())

    def loss_of(rows: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):  # inside, so that it holds for every pass
            logits = model(rows[:, :-1])
        return F.cross_entropy(logits.float().transpose(1, 2), rows[:, 1:])

    for _ in range(steps):
        for _ in range(micro_batches):
            starts = torch.randint(0, len(data) - length - 1, (batch, 1))
            optimizer.accumulate(loss_of, data[starts + torch.arange(length + 1)])
        loss = optimizer.gradient()  # of all micro-batches; .grad is final
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
    return loss.item()


if __name__ == "__main__":
    print(f"loss {main():.3f}")
