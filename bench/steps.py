"""How long does a training step take, privately and not, and how much memory, against torch, Opacus and plain vmap?

A step is everything: gathering the batch, forward, backward, norms, clipping, sum, noise, update. All contenders take
turns within one run, so that whatever else the machine does slows them alike. In a training a step follows its own kind;
so that none inherits another's caches, short steps are taken several times a turn and the first not measured. Medians of
many steps, and ratios of ours over theirs (below 1: ours is less). Peak memory is what a step adds to a process that has
everything loaded, each contender in a process of its own.
"""

from __future__ import annotations

import copy
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from bench import memory
from bench.networks import NETWORKS, Averaged, Lstm, Measured
from noiseproof.engine import checks
from noiseproof.engine.checks import FIRST
from noiseproof.engine.private_gradients import PrivateGradients
from noiseproof.methods.gradients import NoisyGradients
from noiseproof.privacy import Randomness, Reproducible, Secure

Step = Callable[[], Any]
CLIP, SIGMA, RATE = 1.0, 1.0, 0.01
OURS = ("ours", "ours, secure")
LEAST, ENOUGH, DISTURBED = 8.0, 30.0, 0.1
LITTLE = 10.0
"""Megabytes."""
TURN = 15.0
"""Milliseconds of a turn: shorter steps are taken several times, and the last two thirds of them measured."""


class Setting:
    """One network and one batch, the same for every contender."""

    def __init__(self, name: str, batch: int | None = None, measured: Measured | None = None) -> None:
        self.name, measured = name, measured or NETWORKS[name]
        self.features, self.labels = measured.records(batch)
        torch.manual_seed(0)
        self.module = measured.build()

    def copy(self) -> tuple[nn.Module, torch.optim.Optimizer]:
        """The same network for another contender, with its optimizer."""
        module = copy.deepcopy(self.module)
        return module, torch.optim.SGD(module.parameters(), lr=RATE)

    def batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """All records in a new order, as any training gathers its batches."""
        order = torch.randperm(len(self.labels))
        return self.features.index_select(0, order), self.labels.index_select(0, order)

    def losses(self, module: nn.Module, features: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """One loss a record: of its class, or the mean of its tokens'."""
        losses = F.cross_entropy(module(features), labels, reduction="none")
        return losses if losses.ndim == 1 else losses.mean(1)


def ours(setting: Setting, rng: Randomness | None = None, groups: torch.Tensor | None = None) -> Step:
    """dp-sgd, seeded if not said otherwise; sampled at rate 1, so that every batch has all records (of all persons)."""
    module, optimizer = setting.copy()
    owned: dict[str, Any] = {}
    if groups is not None:
        owned = {"groups": groups, "max_records_per_person": int(torch.bincount(groups).max())}
    return _by_engine(setting, module, optimizer, PrivateGradients(module, **_noise(rng)), **owned)


def noisy_gradient(setting: Setting, draw: Any = "exact") -> Step:
    """Lin et al.'s noisy-gradient; `draw="plain"` draws B x P normals."""
    module, optimizer = setting.copy()
    return _by_engine(setting, module, optimizer, NoisyGradients(module, draw=draw, **_noise()))


def _noise(rng: Randomness | None = None) -> dict[str, Any]:
    given = rng or Reproducible(0)
    return {"max_grad_norm": CLIP, "noise_multiplier": SIGMA, "sample_rate": 1.0, "rng": given}


def _by_engine(
    setting: Setting,
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    engine: PrivateGradients | NoisyGradients,
    **owned: Any,
) -> Step:
    batches = engine.batches(setting.features, setting.labels, steps=10**9, **owned)

    def step() -> None:
        features, labels = next(batches)
        optimizer.zero_grad()
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
    """Opacus' step by its `hooks` or by `ghost` clipping, with its own LSTM and with offsets where nothing else is supported."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from opacus import PrivacyEngine
        from opacus.layers import DPLSTM
    module, optimizer = setting.copy()
    supported = {"lstm": lambda: Lstm(DPLSTM), "bag": lambda: Averaged(bag=True, offsets=True)}
    if setting.name in supported:
        module = supported[setting.name]()
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
    "ours, secure": lambda setting: ours(setting, Secure()),
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
    with_memory: bool = True,
    with_opacus: bool = True,
) -> list[dict[str, Any]]:
    """One row a comparison: what, ours and theirs (milliseconds or megabytes), and their ratio."""
    table: list[dict[str, Any]] = []
    for network in only:
        print(f"bench: steps of {network}", file=sys.stderr, flush=True)
        measured, setting = NETWORKS[network], Setting(network)
        peers = ["non-private torch", *(measured.peers if with_opacus else ())]
        if network in ("mlp", "cnn"):
            peers.append("plain vmap")
        steps = {name: CONTENDERS[name](setting) for name in (*OURS, *peers)}
        if network == "cnn":
            steps["noisy-gradient"] = noisy_gradient(setting)
        times = _take_turns(steps, repeats)
        what = f"{network} at batch {measured.batch}"
        for mine, name in zip(("dp-sgd", "dp-sgd, secure"), OURS, strict=True):
            table += [_row(f"{what}, {mine} / {peer}", times[name], times[peer], "ms") for peer in peers]
        if network == "cnn":
            table.append(_row(f"{what}, noisy-gradient / dp-sgd", times["noisy-gradient"], times["ours"], "ms"))
            draws = {"exact": steps["noisy-gradient"], "plain": noisy_gradient(setting, "plain")}
            slow = _take_turns(draws, max(1, repeats // 15), warm=0)
            table.append(_row(f"{what}, noisy-gradient, exact draw / B x P draw", slow["exact"], slow["plain"], "ms"))
        del steps
        if measured.larger:
            setting = Setting(network, measured.larger)
            times = _take_turns({name: CONTENDERS[name](setting) for name in (*OURS, peers[0])}, repeats)
            what = f"{network} at batch {measured.larger}"
            for mine, name in zip(("dp-sgd", "dp-sgd, secure"), OURS, strict=True):
                table.append(_row(f"{what}, {mine} / {peers[0]}", times[name], times[peers[0]], "ms"))
        if with_memory and memory.measurable():
            table += memory_rows(network, with_opacus=with_opacus)
    return table


def memory_rows(network: str, *, with_opacus: bool = True) -> list[dict[str, Any]]:
    """Rows for the memory of steps at four times a network's batch, unchecked and checked."""
    # Peers that write every record's gradient out would need 7 GB and more for the CNN.
    ghost = with_opacus and "Opacus, ghost" in NETWORKS[network].peers
    frugal = ["non-private torch", *(["Opacus, ghost"] if ghost else [])]
    batch = 4 * NETWORKS[network].batch
    megabytes = {peer: _megabytes(network, peer, batch) for peer in frugal}
    table = []
    for kind, checked in (("a step", False), ("a checked step", True)):
        used = _megabytes(network, "ours, secure", batch, checked)
        label = f"{network}, memory of {kind} of {batch}, dp-sgd, secure"
        table += [_row(f"{label} / {peer}", used, megabytes[peer], "MB") for peer in frugal]
    return table


def _megabytes(network: str, contender: str, batch: int, checked: bool = True) -> float:
    """What `_measure` finds in a process of its own; the median of five if it is little, since they differ by tenths."""
    found = [memory.alone(_measure, network, contender, batch, checked)]
    if found[0] < LITTLE:
        found += [memory.alone(_measure, network, contender, batch, checked) for _ in range(4)]
    return statistics.median(found)


def _row(what: str, mine: float, theirs: float, unit: str) -> dict[str, Any]:
    return {"what": what, "ours": mine, "theirs": theirs, "ratio": mine / theirs, "unit": unit}


def _take_turns(steps: dict[str, Step], repeats: int, warm: int = FIRST + 1) -> dict[str, float]:
    """The median milliseconds of every step, measured in turns after warming up; slow ones join every fifth turn.

    The engine checks its first steps, which then take some two to four times as long: they are part of the warming up.
    Where steps are long, fewer turns are enough: five, and as many as half a minute has room for. Where they are short, more are
    taken, for eight seconds: thirty turns of the small MLP last two, and one burst of other work then makes a median. A turn
    during which other processes used a tenth of a core or more is taken again, for two minutes at most.
    """
    times: dict[str, list[float]] = {name: [] for name in steps}
    pauses, rows = dict.fromkeys(steps, 1), dict.fromkeys(steps, 1)
    for _ in range(warm):
        for name, step in steps.items():
            times[name] = [_milliseconds(step)]
    if warm:
        for name, step in steps.items():
            if times[name][-1] < 4 * TURN:  # a short step's first without checks is longer than those that follow
                times[name] = [min(_milliseconds(step) for _ in range(5))]
        fastest = min(values[-1] for values in times.values())
        pauses = {name: 5 if values[-1] > 5 * fastest else 1 for name, values in times.items()}
        rows = {name: max(1, int(TURN / values[-1])) for name, values in times.items()}
        times = {name: [] for name in steps}
    begun, turn, least = time.monotonic(), 0, LEAST if repeats >= 5 else 0.0
    while turn < min(repeats, 5) or (time.monotonic() - begun < (ENOUGH if turn < repeats else least)):
        found: dict[str, list[float]] = {}
        before, start = _others(), time.monotonic()
        for name, step in steps.items():
            if turn % pauses[name] == 0:
                taken = [_milliseconds(step) for _ in range(rows[name])]
                found[name] = taken[len(taken) // 3 :]
        disturbed = _others() - before > DISTURBED * (time.monotonic() - start) + 0.02  # the clock ticks in hundredths
        if disturbed and repeats >= 5 and time.monotonic() - begun < 4 * ENOUGH:
            continue
        turn += 1
        for name, values in found.items():
            times[name] += values
    return {name: statistics.median(values) for name, values in times.items()}


def _milliseconds(step: Step) -> float:
    start = time.perf_counter()
    step()
    return 1000 * (time.perf_counter() - start)


def _others() -> float:
    """Seconds of processor time that other processes have used up to now; 0 where the system does not say."""
    try:
        user, nice, system, _, _, *interrupts = map(int, Path("/proc/stat").read_text().split("\n")[0].split()[1:9])
    except (OSError, ValueError):
        return 0.0
    everyone = (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK")
    return everyone - sum(os.times()[:2])


def _measure(network: str, contender: str, batch: int, checked: bool = True) -> float:
    """Megabytes that three steps add to a process of their own at their peak; the engine checks the first, or none."""
    if not checked:
        checks.FIRST, checks.EVERY = 0, 10**12
    before = CONTENDERS[contender](Setting(network, batch))
    before()  # code and pools that a first step loads, which is all of it that a small network's steps would show
    del before
    memory.give_back()
    step = CONTENDERS[contender](Setting(network, batch))
    return memory.added(lambda: [step() for _ in range(3)])
