"""Reproducible randomness: everything follows from a seed, quickly, and whatever the number of threads."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from noiseproof import kernels
from noiseproof.errors import SettingError
from noiseproof.privacy import randomness
from noiseproof.privacy.randomness import BLOCK, KEY_BYTES, Bits, Floats, Randomness, Streams
from noiseproof.tensors import all_finite


class Reproducible(Randomness):
    """Seeded randomness for research: the same seed and calls give the same numbers on the same kind of machine.

    Noise is ordinary floating-point noise, and whoever knows the seed can subtract it again: what is made with it is a
    rehearsal, not a release. Bits are ChaCha20's; normals are the inverse error function of uniforms with as many digits
    as a float has, so that no draw of float32 is beyond 5.5 standard deviations, where one in 17 million would be, and none
    of float64 beyond 8.3. On another device than the processor torch's generator of that device draws.

    Formal guarantee
    ----------------
    None by itself. Proofs that rest on it hold for real-number arithmetic and a secret seed.

    Args:
        seed: A whole number, 0 or more, that everything follows from.

    Raises:
        SettingError: If the seed is negative.

    Examples:
        >>> import torch
        >>> from noiseproof.privacy import Reproducible
        >>> first = Reproducible(seed=0).add_laplace(torch.zeros(3), scale=1.0)
        >>> again = Reproducible(seed=0).add_laplace(torch.zeros(3), scale=1.0)
        >>> torch.equal(first, again)
        True
    """

    kind = "reproducible"
    assumptions = (
        "the seed is secret and used for nothing else",
        "floating-point noise is taken for the real numbers that it approximates",
    )

    def __init__(self, seed: int) -> None:
        if seed < 0:
            raise SettingError(f"a seed must be 0 or more, not {seed}.")
        self._sequence = np.random.SeedSequence(seed)
        self._reset()

    def _reset(self) -> None:
        self._key = self._sequence.generate_state(KEY_BYTES // 4).tobytes()
        self._calls = 0
        self._generators: dict[torch.device, torch.Generator] = {}

    def _streams(self) -> Streams:
        self._calls += 1
        call = self._calls << 32
        return lambda block: Bits(self._key, call | block)

    def add_gaussian(self, value: torch.Tensor, scale: float, *, out: torch.Tensor | None = None) -> torch.Tensor:
        """`value` plus independent Normal(0, scale^2) on every coordinate, of `value`'s dtype and device."""
        randomness.check_scale(scale)
        randomness.check_kind(value, out)
        if value.device.type != "cpu":
            randomness.check_finite(all_finite(value))
            normals = torch.empty_like(value).normal_(generator=self._on(value.device))
            return torch.add(value.detach(), normals, alpha=scale, out=out)
        direct = kernels.suit(value) and (out is None or out is value)
        source, result = (
            (value, torch.empty_like(value.detach()) if out is None else out)
            if direct
            else randomness.on_cpu(value, out)
        )
        streams = self._streams()
        if kernels.suit(source, result):
            randomness.check_finite(kernels.add_normals(source, self._key, self._calls, scale, result))
            return result if direct else randomness.returned(value, out, result)
        randomness.check_finite(all_finite(source))
        width = torch.int32 if source.dtype == torch.float32 else torch.int64
        # As far from 0 as an integer goes becomes the last number before 1, whose normal is finite.
        most = (1 - torch.finfo(source.dtype).eps / 2) / -float(torch.iinfo(width).min)
        # Threads of our own would only be in torch's way: its own go on spinning for a while after each operation.
        for number, (old, new) in enumerate(zip(source.split(BLOCK), result.split(BLOCK), strict=True)):
            whole = torch.empty(old.shape, dtype=width)
            streams(number).fill(whole.numpy())
            # A uniform u between -1 and 1 becomes the normal sqrt(2) erfinv(u).
            torch.add(old, whole.to(old.dtype).mul_(most).erfinv_(), alpha=math.sqrt(2) * scale, out=new)
        return randomness.returned(value, out, result)

    def add_laplace(
        self, value: torch.Tensor, scale: float | torch.Tensor, *, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """`value` plus independent Laplace(scale) on every coordinate; `scale` may be a tensor that broadcasts."""
        randomness.check_value(value, out)
        if isinstance(scale, torch.Tensor):
            scales = randomness.check_scales(scale, value.shape)
        else:
            scales = torch.tensor(randomness.check_scale(scale), dtype=torch.float64)
        if value.device.type != "cpu":
            sides = torch.empty_like(value, dtype=torch.float64).uniform_(-1, 1, generator=self._on(value.device))
            noise = -sides.sign() * torch.log1p(-sides.abs()) * scales.to(value.device)
            return torch.add(value.detach(), noise.to(value.dtype), out=out)
        each = scales.expand(value.shape).reshape(-1).numpy() if scales.numel() != 1 else None

        def noisy(old: Floats, where: slice, bits: Bits, new: Floats) -> None:
            noise = _laplaces(old.size, bits)
            noise *= scales.item() if each is None else each[where]
            np.add(old, noise, out=new, casting="same_kind")

        return randomness.add_in_blocks(value, out, self._streams(), noisy)

    def _sample(self, records: int, rate: float, streams: Streams) -> npt.NDArray[np.int64]:
        """In time proportional to the sample's size: by the gaps between records."""
        bits = streams(0)
        found: list[npt.NDArray[np.int64]] = []
        last, likely = -1, int(records * rate + 6 * math.sqrt(records * rate) + 8)
        while last < records:
            # A gap is k with probability rate (1 - rate)^(k - 1); it need not be known beyond the records.
            with np.errstate(over="ignore"):
                gaps = np.log(((bits.words(likely) >> 11) + 0.5) * 2.0**-53) / math.log1p(-rate)
            indices = last + np.cumsum(np.minimum(gaps, records).astype(np.int64) + 1)
            found.append(indices)
            last = int(indices[-1])
        sample = np.concatenate(found)
        return sample[: np.searchsorted(sample, records)]

    @property
    def generator(self) -> torch.Generator:
        """A torch generator for what privacy does not rest on; its seed follows from this randomness's."""
        return self._on(torch.device("cpu"))

    def _on(self, device: torch.device) -> torch.Generator:
        if device not in self._generators:
            # A nonce that no call has: theirs begin at 2^32.
            seed = Bits(self._key, 0 if device.index is None else device.index + 1).integer(64) >> 1
            self._generators[device] = torch.Generator(device).manual_seed(seed)
        return self._generators[device]

    def spawn(self, key: int) -> Reproducible:
        """An independent child; the same `key` gives the same child, whatever was drawn before."""
        if key < 0:
            raise SettingError(f"a child's key must be 0 or more, not {key}.")
        child = object.__new__(type(self))
        child._sequence = np.random.SeedSequence(self._sequence.entropy, spawn_key=(*self._sequence.spawn_key, key))
        child._reset()
        return child

    def state(self) -> dict[str, Any]:
        """The number of calls so far, and the states of torch's generators."""
        generators = {
            str(device): value.get_state().numpy().tobytes().hex() for device, value in self._generators.items()
        }
        return {"calls": self._calls, "generators": generators}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on drawing from where `state` was taken, of randomness with this seed."""
        self._calls = int(state["calls"])
        for name, content in state["generators"].items():
            generator = self._on(torch.device(name))
            generator.set_state(torch.frombuffer(bytearray.fromhex(content), dtype=torch.uint8))

    def rounding(self, scale: float, coordinates: int, norm: Literal[1, 2] = 2) -> float:
        """0: values are not rounded."""
        return 0.0


def _laplaces(count: int, bits: Bits) -> npt.NDArray[np.float64]:
    """Independent Laplace(1) draws, by inversion of a uniform strictly between -1 and 1."""
    sides = ((bits.words(count).view(np.int64) >> 11) + 0.5) * 2.0**-52
    return np.copysign(np.log1p(-np.abs(sides)), sides)
