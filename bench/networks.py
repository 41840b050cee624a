"""The networks whose steps are measured: papers' and everyday ones, at sizes that two cores train in reasonable time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional as F

Batch = tuple[torch.Tensor, torch.Tensor]
VOCABULARY, TOKENS, ROWS = 8192, 64, 50_000


class Lstm(nn.Module):
    """Lin et al.'s: one image row a step, the last output to the classes. `layer` is torch's LSTM or Opacus's twin."""

    def __init__(self, layer: Callable[..., nn.Module] = nn.LSTM) -> None:
        super().__init__()
        self.layer, self.scores = layer(28, 128, batch_first=True), nn.Linear(128, 10)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Class scores, from the last step's output."""
        return self.scores(self.layer(rows)[0][:, -1])


def mlp(*widths: int) -> nn.Module:
    """Linear layers of these widths, with ReLUs between them."""
    layers = [nn.Linear(before, after) for before, after in pairwise(widths)]
    return nn.Sequential(layers[0], *(part for layer in layers[1:] for part in (nn.ReLU(), layer)))


def cnn() -> nn.Module:
    """Lin et al.'s network for 28 x 28 pictures."""
    return nn.Sequential(
        *(nn.Conv2d(1, 32, 5, padding="same"), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 5, padding="same"), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(3136, 1024), nn.ReLU(), nn.Dropout(0.5), nn.Linear(1024, 10)),
    )


class Residual(nn.Module):
    """ResNet-18's block, with GroupNorm."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False), nn.GroupNorm(16, outputs), nn.ReLU()),
            *(nn.Conv2d(outputs, outputs, 3, padding=1, bias=False), nn.GroupNorm(16, outputs)),
        )
        same = inputs == outputs and stride == 1
        shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.GroupNorm(16, outputs))
        self.shortcut = nn.Identity() if same else shortcut

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        """The body's output plus the input."""
        return F.relu(self.body(pictures) + self.shortcut(pictures))


def resnet() -> nn.Module:
    """ResNet-18 for 32 x 32 pictures, with GroupNorm: 11.2 million parameters."""
    widths = [64, 64, 64, 128, 128, 256, 256, 512, 512]
    strides = [1, 1, 2, 1, 2, 1, 2, 1]
    blocks = [
        Residual(before, after, stride) for (before, after), stride in zip(pairwise(widths), strides, strict=True)
    ]
    first = (nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.GroupNorm(16, 64), nn.ReLU())
    return nn.Sequential(*first, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


class Block(nn.Module):
    """A transformer's block, norms first."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.mixed, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attention, then two linear layers, each beside a shortcut."""
        records, tokens, width = x.shape
        query, key, value = (
            part.view(records, tokens, self.heads, -1).transpose(1, 2)
            for part in self.mixed(self.norms[0](x)).split(width, dim=-1)
        )
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        x = x + self.out(seen.transpose(1, 2).reshape(records, tokens, width))
        return x + self.narrow(F.gelu(self.wide(self.norms[1](x))))


class Text(nn.Module):
    """Like BERT (the first token to two classes) or, if `causal`, like GPT-2 (every token to the next)."""

    def __init__(self, causal: bool, width: int = 256, layers: int = 4, longest: int = TOKENS) -> None:
        super().__init__()
        self.causal = causal
        self.tokens, self.positions = nn.Embedding(VOCABULARY, width), nn.Embedding(longest, width)
        self.blocks = nn.Sequential(*(Block(width, 4, causal) for _ in range(layers)), nn.LayerNorm(width))
        self.scores = nn.Linear(width, VOCABULARY if causal else 2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Scores of classes, or (records, vocabulary, tokens) of next tokens."""
        positions = torch.arange(tokens.shape[1]).expand(tokens.shape)
        x = self.blocks(self.tokens(tokens) + self.positions(positions))
        return self.scores(x).transpose(1, 2) if self.causal else self.scores(x[:, 0])


class Vit(nn.Module):
    """A vision transformer with a raw class token and raw positions: parameters of no layer."""

    def __init__(self, width: int = 192, layers: int = 6) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, stride=4)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, 65, width) / 50)
        self.blocks = nn.Sequential(*(Block(width, 3, causal=False) for _ in range(layers)), nn.LayerNorm(width))
        self.scores = nn.Linear(width, 10)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        """Class scores, from the class token."""
        patches = self.patches(pictures).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(pictures), -1, -1), patches], dim=1) + self.positions
        return self.scores(self.blocks(x)[:, 0])


class Averaged(nn.Module):
    """The mean of some tokens' rows to two classes. With `offsets` a bag gets all records' tokens in one row, as Opacus asks."""

    def __init__(self, bag: bool, *, offsets: bool = False) -> None:
        super().__init__()
        self.rows = nn.EmbeddingBag(ROWS, 64, mode="mean") if bag else nn.Embedding(ROWS, 64)
        self.scores, self.offsets = nn.Linear(64, 2), offsets

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Class scores."""
        begins = (torch.arange(0, tokens.numel(), tokens.shape[1]),) if self.offsets else ()
        rows = self.rows(tokens.flatten() if self.offsets else tokens, *begins)
        return self.scores(rows if rows.ndim == 2 else rows.mean(1))


def numbers(*shape: int) -> Callable[[int, torch.Generator], torch.Tensor]:
    """What draws normals of that shape."""
    return lambda batch, generator: torch.randn(batch, *shape, generator=generator)


def tokens(count: int, rows: int) -> Callable[[int, torch.Generator], torch.Tensor]:
    """What draws so many tokens of a vocabulary of `rows`."""
    return lambda batch, generator: torch.randint(rows, (batch, count), generator=generator)


@dataclass(frozen=True)
class Measured:
    """A network and what it is measured on."""

    build: Callable[[], nn.Module]
    features: Callable[[int, torch.Generator], torch.Tensor]
    classes: int
    batch: int = 128
    peers: tuple[str, ...] = ("Opacus, hooks", "Opacus, ghost")
    """Which of Opacus' modes can train it here: hooks write every record's gradient out, which ghost clipping does too for raw
    parameters and bags; it fails on errors that lie apart in memory, as attention's do, and on losses of several tokens."""
    larger: int | None = None
    """A batch at which time is measured too."""

    def records(self, batch: int | None = None) -> Batch:
        """A batch of made-up records."""
        generator = torch.Generator().manual_seed(0)
        features = self.features(batch or self.batch, generator)
        shape = features.shape if self.classes == VOCABULARY else features.shape[:1]
        return features, torch.randint(self.classes, shape, generator=generator)


NETWORKS: dict[str, Measured] = {
    "mlp": Measured(lambda: mlp(600, 128, 100), numbers(600), 100),
    "mlp 446-256-128-30": Measured(lambda: mlp(446, 256, 128, 30), numbers(446), 30),
    "mlp 4096-4096": Measured(lambda: mlp(4096, 4096), numbers(4096), 4096, 32, ("Opacus, ghost",)),
    "cnn": Measured(cnn, numbers(1, 28, 28), 10),
    "lstm": Measured(Lstm, numbers(28, 28), 10),
    "resnet": Measured(resnet, numbers(3, 32, 32), 10, 32, ("Opacus, ghost",)),
    "vit": Measured(Vit, numbers(3, 32, 32), 10, 32, ("Opacus, hooks",), larger=512),
    "bert": Measured(lambda: Text(causal=False), tokens(TOKENS, VOCABULARY), 2, 16, ("Opacus, hooks",)),
    "gpt2": Measured(lambda: Text(causal=True), tokens(TOKENS, VOCABULARY), VOCABULARY, 16, ("Opacus, hooks",)),
    "embedding": Measured(lambda: Averaged(bag=False), tokens(32, ROWS), 2, 128, ("Opacus, ghost",)),
    "bag": Measured(lambda: Averaged(bag=True), tokens(32, ROWS), 2, 128, ("Opacus, hooks",)),
}
