"""One rank of a test: a user's loop over a small transformer. `python -m tests.integrations.rank FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader

import noiseproof as npf
from noiseproof.run import distributed
from tests.run.launch import leave

PATIENTS, MOST = [f"patient {n * n % 19}" for n in range(40)], 3
"""Whose the records are: ten persons, with two to seven each."""
RECORDS, WIDTH, LENGTH, CLASSES, CLIP = 40, 16, 6, 3, 0.5
HAIR = 1 - 1e-5
"""Gradients are clipped to a hair less than they may have."""


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(30, WIDTH)
        self.position = nn.Parameter(0.1 * torch.randn(LENGTH, WIDTH))
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, CLASSES)
        self.double()  # so that what is compared differs by no more than noise of a billionth

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(ids) + self.position
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden.mean(1))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.inside = nn.Linear(WIDTH, 3 * WIDTH)
        self.outside = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        query, key, value = self.inside(self.norm(hidden)).unflatten(-1, (3, 2, WIDTH // 2)).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return hidden + self.outside(mixed.transpose(1, 2).flatten(2))


def records() -> list[tuple[int, torch.Tensor, int]]:
    generator = torch.Generator().manual_seed(1)
    return [(n, torch.randint(30, (LENGTH,), generator=generator), n % CLASSES) for n in range(RECORDS)]


def whole(value: torch.Tensor | None) -> torch.Tensor:
    assert value is not None
    return value.full_tensor() if hasattr(value, "full_tensor") else value.detach().clone()


def trained(kind: str, batch_size: int = 10, **options: object) -> dict[str, object]:
    """Two steps of a user's own loop: the weights before each, its records on this rank, and its gradient."""
    model: nn.Module = Transformer()
    if kind == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    elif kind == "fsdp":
        from torch.distributed.fsdp import fully_shard

        for block in model.blocks:  # type: ignore[union-attr]
            fully_shard(block)
        fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    loader = DataLoader(records(), batch_size=batch_size, shuffle=True)  # type: ignore[arg-type]
    engine = npf.make_private(model, optimizer, loader, max_grad_norm=CLIP, seed=3, **options)  # type: ignore[arg-type]
    steps = []
    for numbers, ids, labels in loader:
        optimizer.zero_grad()
        own = numbers.tolist() if engine.gradients.waiting else []
        before = [whole(parameter) for parameter in engine.gradients.parameters]
        nn.functional.cross_entropy(model(ids), labels).backward()
        steps.append((before, own, [whole(parameter.grad) for parameter in engine.gradients.parameters]))
        optimizer.step()
    after = [whole(parameter) for parameter in engine.gradients.parameters]
    return {"steps": steps, "after": after, "events": engine.events.runs}


def main() -> None:
    torch.set_num_threads(1)
    with distributed.start() as ranks:
        found = {
            name: trained(kind, noise_multiplier=noise)
            for kind in sys.argv[2:]
            for name, noise in ((kind, 1e-9), (f"{kind} noised", 1.0))
        }
        for kind in sys.argv[2:]:
            options = {"groups": PATIENTS, "max_records_per_person": MOST}
            found[f"{kind} persons"] = trained(kind, batch_size=4, noise_multiplier=1e-9, **options)
    torch.save(found, Path(sys.argv[1]) / f"{ranks.rank}.pt")


if __name__ == "__main__":
    main()
    leave()
