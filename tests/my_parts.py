"""Data, models and readers of a user's own, which tests name as my_parts:NAME."""

from functools import partial

import torch
from torch import nn
from torch.utils.data import Dataset

import esam
from esam.train import Task

X = torch.randn(60, 4, generator=torch.Generator().manual_seed(7))
Y = (X[:, 0] > 0).long() + (X[:, 1] > 0).long()
TRAIN, TEST = (X[:40], Y[:40]), (X[40:], Y[40:])


class Pairs(Dataset):
    def __init__(self, x=X, y=Y):
        self.x, self.y = x, y

    def __len__(self):
        return 40

    def __getitem__(self, row):
        return self.x[row], int(self.y[row])


class Torn(Pairs):
    """Has a row that cannot be read."""

    def __getitem__(self, row):
        return super().__getitem__({}[row] if row == 17 else row)


def pair():
    return TRAIN, TEST


def squares(outputs, targets):
    return (outputs - targets).square().mean(1)


classes = partial(Task, TRAIN, TEST, classes=("none", "one", "both"))
dataset = partial(Task, Pairs(), TEST)
infinite_row = partial(Task, Pairs(X.masked_fill(X.eq(X[7, 3]), float("inf"))), TEST)
untested = partial(Task, TRAIN, (X[Y < 2], Y[Y < 2]))
numbers = partial(Task, (X, X[:, :1]), (X, X[:, :1]), loss=squares)
torn = partial(Task, Torn(), TEST)
ragged = partial(Task, [(X[row, : 3 + row % 2], Y[row]) for row in range(40)], TEST)
words = partial(Task, [(x, "cat") for x in X], TEST)
uneven = partial(Task, (X, Y[:5]), TEST)
scalar_loss = partial(Task, TRAIN, TEST, loss=nn.functional.cross_entropy)


def pictures():
    images = X.view(-1, 1, 2, 2).repeat(1, 3, 4, 4)
    return Task((images[:40], Y[:40]), (images[40:], Y[40:]))


def broken():
    return 1 / 0


def tensors():
    return X, Y


def net():
    return nn.Linear(4, 3)


def net_of(task):
    return nn.Linear(4, len(task.classes))


def line():
    return nn.Linear(4, 1)


class TwoAnswers(nn.Linear):
    def __init__(self):
        super().__init__(4, 3)

    def forward(self, x):
        return super().forward(x), x


class Late(nn.Linear):
    """Fails in the middle of training."""

    def __init__(self):
        super().__init__(4, 3)
        self.calls = 0

    def forward(self, x):
        self.calls += self.training
        if self.calls > 3:
            raise KeyError("too late")
        return super().forward(x)


def broken_net():
    raise KeyError("layers")


def leaving_net():
    raise SystemExit(3)


def unseeded():
    torch.manual_seed(unseeded.calls)
    unseeded.calls += 1
    return net()


unseeded.calls = 0


class Mine(esam.SAM):
    """SAM again."""
