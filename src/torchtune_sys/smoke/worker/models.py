"""Two small models, and data whose right answers are known."""

from __future__ import annotations

import math
from typing import Tuple

import torch
import torch.nn.functional as functional
from torch import nn

Batch = Tuple[torch.Tensor, torch.Tensor]
"""Inputs, and the answers to them."""
TOKENS = 8
"""Words of the language, and places in a sentence."""
SHAPES = 4
WIDTH = 32
_HEADS = 4
_PIXELS = 8
KEPT_BY_DROPOUT, _DRAWS_COMPILED = "kept_by_dropout", 1 << 12
LEARNED = math.log(2) / 4
"""A mean loss below it is proof. Whoever wavers between two answers pays log 2 each time; so it is bound to be the answer
in three of four cases. A model that lacks attention, a layer's gradient or a quarter of its data stays above."""


class ResidualBlock(nn.Module):
    """Attention to earlier places, then two layers for each place, as in the models people train."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.before_attention = nn.LayerNorm(WIDTH)
        self.attention = nn.Linear(WIDTH, 3 * WIDTH)
        self.joined = nn.Linear(WIDTH, WIDTH)
        self.before_wide = nn.LayerNorm(WIDTH)
        self.wide = nn.Linear(WIDTH, 2 * WIDTH)
        self.narrow = nn.Linear(2 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        sentences, places, width = hidden.shape
        split = self.attention(self.before_attention(hidden)).view(sentences, places, 3, _HEADS, width // _HEADS)
        query, key, value = split.permute(2, 0, 3, 1, 4).unbind(0)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.dropout(self.joined(seen.transpose(1, 2).reshape(sentences, places, width)))
        return hidden + self.dropout(self.narrow(functional.gelu(self.wide(self.before_wide(hidden)))))


class SmallTransformer(nn.Module):
    """Learns to say the word before (``sentences``), which takes attention, places and words."""

    def __init__(self, depth: int = 2, dropout: float = 0.0) -> None:
        super().__init__()
        self.words = nn.Embedding(TOKENS, WIDTH)
        self.places = nn.Parameter(torch.randn(TOKENS, WIDTH))
        self.blocks = nn.ModuleList([ResidualBlock(dropout) for _ in range(depth)])
        self.last = nn.LayerNorm(WIDTH)
        self.answer = nn.Linear(WIDTH, TOKENS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        hidden = self.words(words) + self.places
        for block in self.blocks:
            hidden = block(hidden)
        return self.answer(self.last(hidden))


class SmallConvNet(nn.Module):
    """Learns which way a bar lies (``bars``); its normalisation keeps running means."""

    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, channels, 3, padding=1),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveMaxPool2d(1),
            nn.Flatten(),
            nn.Linear(channels, SHAPES),
        )

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        return self.layers(pictures)


class FunctionBlend(torch.nn.Module):
    """What compilers write out by themselves, each with a weight of its own: none is lost among the others."""

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        size = given.abs() + 0.5
        there = given.detach()  # of which the compiler has no way back to write: half as much to trace
        apart = there.abs() + 0.5
        endless = there / 0.0  # what a compiler that was told that there is no such number leaves out (-ffinite-math-only)
        parts = (
            torch.tanh(given),
            torch.sigmoid(there),
            torch.sin(there),
            torch.cos(there),
            torch.exp(-size),
            torch.log1p(apart),
            torch.sqrt(apart),
            torch.erf(there),
            1 / apart,
            torch.where(given > 0.25, given, -size),
            given.clamp(-0.75, 1.0),
            torch.maximum(there, there.roll(1, -1)),
            torch.nn.functional.silu(given),
            torch.softmax(given, -1),
            torch.isinf(endless).to(given.dtype),
            torch.isnan(endless - endless).to(given.dtype),
            torch.nan_to_num(endless, posinf=0.5, neginf=-0.5),
        )
        return sum(part * (1 + number % 3) for number, part in enumerate(parts)) / len(parts)


class InputMark(torch.nn.Module):
    """Writes into what it is given."""

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return given.mul_(2)


class DropoutDraw(torch.nn.Module):
    """Keeps what a dropout leaves of ones beside what it passes on."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer(KEPT_BY_DROPOUT, torch.ones(_DRAWS_COMPILED))

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        drawn = getattr(self, KEPT_BY_DROPOUT)
        drawn.copy_(torch.nn.functional.dropout(torch.ones_like(drawn), 0.5, self.training))
        return given


def sentences(count: int, seed: int) -> Batch:
    """Words drawn independently, and the answers: at each place the word before (at the first, the word itself)."""
    words = torch.randint(0, TOKENS, (count, TOKENS), generator=torch.Generator().manual_seed(seed))
    answers = words.roll(1, 1)
    answers[:, 0] = words[:, 0]
    return words, answers


def bars(count: int, seed: int) -> Batch:
    """Bars of four pixels that lie, stand, fall or rise somewhere in a faint noise, and which of these they do."""
    generator = torch.Generator().manual_seed(seed)
    answers = torch.randint(0, SHAPES, (count,), generator=generator)
    corners = torch.randint(0, _PIXELS - 3, (count, 2), generator=generator)
    pictures = torch.rand((count, 1, _PIXELS, _PIXELS), generator=generator) * 0.25
    step = torch.arange(4)
    rows = torch.stack([step * 0, step, step, 3 - step])[answers] + corners[:, :1]
    columns = torch.stack([step, step * 0, step, step])[answers] + corners[:, 1:]
    pictures[torch.arange(count)[:, None], 0, rows, columns] += 1.0
    return pictures, answers


def loss_of(model: nn.Module, batch: Batch, device: torch.device) -> torch.Tensor:
    inputs, answers = batch[0].to(device), batch[1].to(device)
    return functional.cross_entropy(model(inputs).flatten(0, -2), answers.flatten())


def seeded(seed: int) -> None:
    """Seed the generators that models draw from, on every device."""
    torch.manual_seed(seed)
