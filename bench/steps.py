"""How long does a training step take, privately and not, and how much memory, against torch, Opacus and plain vmap?

A step is everything: gathering the batch, forward, backward, norms, clipping, sum, noise, update. All contenders take
turns within one run, so that whatever else the machine does slows them alike. In a training a step follows its own kind;
so that none inherits another's caches, short steps are taken several times a turn and the first not measured. Medians of
many steps, and ratios of ours over theirs (below 1: ours is less). Peak memory is what a step adds to a process that has
everything loaded, each contender in a process of its own.
"""

from __future__ import annotations

import copy
import statistics
import time
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from bench import memory
from noiseproof.engine.checks import FIRST
from noiseproof.engine.private_gradients import PrivateGradients
from noiseproof.methods.gradients import NoisyGradients
from noiseproof.privacy import Reproducible

Step = Callable[[], Any]
CLIP, SIGMA, RATE = 1.0, 1.0, 0.01
TURN = 15.0
"""Milliseconds of a turn: shorter steps are taken several times, and the last two thirds of them measured."""


class Lstm(nn.Module):
    """Lin et al.'s: one image row a step, the last output to the classes. `layer` is torch's LSTM or Opacus's twin."""

    def __init__(self, layer: Callable[..., nn.Module] = nn.LSTM) -> None:
        super().__init__()
        self.layer, self.scores = layer(28, 128, batch_first=True), nn.Linear(128, 10)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Class scores, from the last step's output."""
        return self.scores(self.layer(rows)[0][:, -1])


def mlp() -> nn.Module:
    """600-128-100."""
    return nn.Sequential(nn.Linear(600, 128), nn.ReLU(), nn.Linear(128, 100))


def cnn() -> nn.Module:
    """Lin et al.'s network for 28 x 28 pictures."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 5, padding="same"),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding="same"),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(3136, 1024),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(1024, 10),
    )


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "mlp": (mlp, (600,), 100),
    "cnn": (cnn, (1, 28, 28), 10),
    "lstm": (Lstm, (28, 28), 10),
}


class Setting:
    """One network and one batch, the same for every contender."""

    def __init__(self, name: str, batch: int) -> None:
        build, shape, classes = NETWORKS[name]
        generator = torch.Generator().manual_seed(0)
        self.name = name
        self.features = torch.randn(batch, *shape, generator=generator)
        self.labels = torch.randint(classes, (batch,), generator=generator)
        torch.manual_seed(0)
        self.module = build()

    def copy(self) -> tuple[nn.Module, torch.optim.Optimizer]:
        """The same network for another contender, with its optimizer."""
        module = copy.deepcopy(self.module)
        return module, torch.optim.SGD(module.parameters(), lr=RATE)

    def batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """All records in a new order, as any training gathers its batches."""
        order = torch.randperm(len(self.labels))
        return self.features.index_select(0, order), self.labels.index_select(0, order)

    def losses(self, module: nn.Module, features: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """One loss a record."""
        return F.cross_entropy(module(features), labels, reduction="none")


def ours(setting: Setting) -> Step:
    """dp-sgd; sampled at rate 1, so that every batch has all records."""
    module, optimizer = setting.copy()
    return _by_engine(setting, module, optimizer, PrivateGradients(module, **_noise()))


def noisy_gradient(setting: Setting, draw: Any = "exact") -> Step:
    """Lin et al.'s noisy-gradient; `draw="plain"` draws B x P normals."""
    module, optimizer = setting.copy()
    return _by_engine(setting, module, optimizer, NoisyGradients(module, draw=draw, **_noise()))


def _noise() -> dict[str, Any]:
    return {"max_grad_norm": CLIP, "noise_multiplier": SIGMA, "sample_rate": 1.0, "rng": Reproducible(0)}


def _by_engine(
    setting: Setting, module: nn.Module, optimizer: torch.optim.Optimizer, engine: PrivateGradients | NoisyGradients
) -> Step:
    batches = engine.batches(setting.features, setting.labels, steps=10**9)

    def step() -> None:
        features, labels = next(batches)
        engine.backward(setting.losses(module, features, labels))
        optimizer.step()

    return step


def plain(setting: Setting) -> Step:
    """Training without privacy."""
    module, optimizer = setting.copy()

    def step() -> None:
        features, labels = setting.batch()
        optimizer.zero_grad()
        setting.losses(module, features, labels).mean().backward()
        optimizer.step()

    return step


def vmapped(setting: Setting) -> Step:
    """Per-record gradients by `torch.func.vmap` over the whole network, clipped and noised by hand."""
    module, optimizer = setting.copy()
    parameters = dict(module.named_parameters())

    def loss(values: dict[str, torch.Tensor], record: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(torch.func.functional_call(module, values, record.unsqueeze(0)), label.unsqueeze(0))

    by_record = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0), randomness="different")

    def step() -> None:
        gradients = by_record({name: parameter.detach() for name, parameter in parameters.items()}, *setting.batch())
        norms = torch.stack([gradient.flatten(1).norm(dim=1) for gradient in gradients.values()]).norm(dim=0)
        weights = (CLIP / norms).clamp(max=1)
        for name, parameter in parameters.items():
            total = torch.einsum("b,b...->...", weights, gradients[name])
            parameter.grad = (total + torch.randn_like(total) * SIGMA * CLIP) / len(setting.labels)
        optimizer.step()

    return step


def opacus(setting: Setting, mode: str) -> Step:
    """Opacus' step by its `hooks` or by `ghost` clipping, with its own LSTM where torch's is not supported."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from opacus import PrivacyEngine
        from opacus.layers import DPLSTM
    module, optimizer = setting.copy()
    if setting.name == "lstm":
        module = Lstm(DPLSTM)
        optimizer = torch.optim.SGD(module.parameters(), lr=RATE)
    dataset = torch.utils.data.TensorDataset(setting.features, setting.labels)
    loader = torch.utils.data.DataLoader(dataset, batch_size=len(dataset))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        private, optimizer, *rest = PrivacyEngine().make_private(
            module=module,
            optimizer=optimizer,
            data_loader=loader,
            criterion=nn.CrossEntropyLoss(),
            noise_multiplier=SIGMA,
            max_grad_norm=CLIP,
            poisson_sampling=False,
            grad_sample_mode=mode,
        )
    criterion = rest[0] if mode == "ghost" else nn.CrossEntropyLoss()

    def step() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            features, labels = setting.batch()
            optimizer.zero_grad()
            criterion(private(features), labels).backward()
            optimizer.step()

    return step


CONTENDERS: dict[str, Callable[[Setting], Step]] = {
    "ours": ours,
    "non-private torch": plain,
    "Opacus, hooks": lambda setting: opacus(setting, "hooks"),
    "Opacus, ghost": lambda setting: opacus(setting, "ghost"),
    "plain vmap": vmapped,
    "noisy-gradient": noisy_gradient,
}


def rows(
    repeats: int = 30,
    *,
    only: Iterable[str] = tuple(NETWORKS),
    batch: int = 128,
    memory_batch: int = 512,
    with_opacus: bool = True,
) -> list[dict[str, Any]]:
    """One row a comparison: what, ours and theirs (milliseconds or megabytes), and their ratio."""
    table: list[dict[str, Any]] = []
    for network in only:
        setting = Setting(network, batch)
        peers = ["non-private torch", "plain vmap"]
        if network == "lstm":
            peers.remove("plain vmap")  # it cannot look into torch's LSTM
        if with_opacus:
            peers += ["Opacus, hooks", "Opacus, ghost"]
        steps = {name: CONTENDERS[name](setting) for name in ("ours", *peers)}
        if network == "cnn":
            steps["noisy-gradient"] = noisy_gradient(setting)
        times = _take_turns(steps, repeats)
        table += [_row(f"{network}, dp-sgd step / {peer}", times["ours"], times[peer], "ms") for peer in peers]
        if network == "cnn":
            table.append(_row("cnn, noisy-gradient step / dp-sgd step", times["noisy-gradient"], times["ours"], "ms"))
            draws = {"exact": steps["noisy-gradient"], "plain": noisy_gradient(setting, "plain")}
            slow = _take_turns(draws, max(1, repeats // 15), warm=0)
            table.append(_row("cnn, noisy-gradient, exact draw / B x P draw", slow["exact"], slow["plain"], "ms"))
        if memory_batch and memory.measurable():
            # Peers that write every record's gradient out would need 7 GB and more for the CNN.
            frugal = [peer for peer in peers if network != "cnn" or peer in ("non-private torch", "Opacus, ghost")]
            megabytes = {name: memory.alone(_measure, network, name, memory_batch) for name in ("ours", *frugal)}
            what = f"{network}, memory of a step of {memory_batch} / "
            table += [_row(what + peer, megabytes["ours"], megabytes[peer], "MB") for peer in frugal]
    return table


def _row(what: str, mine: float, theirs: float, unit: str) -> dict[str, Any]:
    return {"what": what, "ours": mine, "theirs": theirs, "ratio": mine / theirs, "unit": unit}


def _take_turns(steps: dict[str, Step], repeats: int, warm: int = FIRST + 1) -> dict[str, float]:
    """The median milliseconds of every step, measured in turns after warming up; slow ones join every fifth turn.

    The engine checks its first steps, which then take some two to four times as long: they are part of the warming up.
    """
    times: dict[str, list[float]] = {name: [] for name in steps}
    pauses, rows = dict.fromkeys(steps, 1), dict.fromkeys(steps, 1)
    for turn in range(warm + repeats):
        if turn == warm > 0:
            fastest = min(values[-1] for values in times.values())
            pauses = {name: 5 if values[-1] > 5 * fastest else 1 for name, values in times.items()}
            rows = {name: max(1, int(TURN / values[-1])) for name, values in times.items()}
            times = {name: [] for name in steps}
        for name, step in steps.items():
            if (turn - warm) % pauses[name] == 0:
                for taken in range(rows[name]):
                    start = time.perf_counter()
                    step()
                    if taken >= rows[name] // 3:
                        times[name].append(1000 * (time.perf_counter() - start))
    return {name: statistics.median(values) for name, values in times.items()}


def _measure(network: str, contender: str, batch: int) -> float:
    """Megabytes that three steps add to a process of their own at their peak."""
    small = CONTENDERS[contender](Setting(network, 2))
    small()  # imports and pools that a first step makes
    step = CONTENDERS[contender](Setting(network, batch))
    return memory.added(lambda: [step() for _ in range(3)])
