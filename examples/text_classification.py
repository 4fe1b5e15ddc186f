"""Which of two words comes first? Short padded texts in dicts, and ESAM, which ranks them by their losses."""

import torch
import torch.nn.functional as F
from torch import nn

from esam import ESAM

WORDS, LENGTH = 30, 12


class Reader(nn.Module):
    """Embeddings, one layer of attention, the mean over the words that are there."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, width), nn.Embedding(LENGTH, width)
        self.layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.1, batch_first=True)
        self.head = nn.Linear(width, 2)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        hidden = self.words(ids) + self.places(torch.arange(LENGTH))
        hidden = self.layer(hidden, src_key_padding_mask=~mask)
        return self.head((hidden * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True))


def texts(count: int) -> dict[str, torch.Tensor]:
    """Return random words of several lengths, with words 1 and 2 somewhere among the first six."""
    ids = torch.randint(3, WORDS, (count, LENGTH))
    first, second = torch.rand(count, 6).argsort(1)[:, :2].sort(1).values.T
    label = torch.randint(0, 2, (count,))
    rows = torch.arange(count)
    ids[rows, first], ids[rows, second] = 1 + label, 2 - label
    mask = torch.arange(LENGTH) < torch.randint(6, LENGTH + 1, (count, 1))
    return {"ids": ids * mask, "mask": mask, "label": label}


def main(steps: int = 300, batch: int = 64) -> float:
    """Train; return the share of new texts that are read right."""
    torch.manual_seed(0)
    model = Reader()
    optimizer = ESAM(torch.optim.AdamW(model.parameters(), lr=3e-3), model, rho=0.02)

    def losses(samples: dict[str, torch.Tensor]) -> torch.Tensor:
        return F.cross_entropy(model(samples["ids"], samples["mask"]), samples["label"], reduction="none")

    for _ in range(steps):
        optimizer.step(losses, texts(batch))

    model.eval()
    with torch.no_grad():
        new = texts(500)
        return (model(new["ids"], new["mask"]).argmax(1) == new["label"]).float().mean().item()


if __name__ == "__main__":
    print(f"accuracy {main():.3f}")
