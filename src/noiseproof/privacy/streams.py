"""Streams: one training's pass through a strategy of correlated noise, step by step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from noiseproof import kernels
from noiseproof.errors import UnsupportedError

Floats = npt.NDArray[np.float64]

_AHEAD = 4
"""Steps whose sums over a ring are made at once: more would save little, since what came since must be read as well."""


class Stream(ABC):
    """One training's pass through a strategy, step by step."""

    step = 0

    @abstractmethod
    def release(self, gradient: torch.Tensor, noise: Any) -> torch.Tensor:
        """The step's gradient with its correlated noise.

        Args:
            gradient: The step's sum of clipped gradients.
            noise: Adds independent noise to a vector: the Gaussian mechanism for the strategy's sensitivity.

        Formal guarantee
        ----------------
        Only (C G)_t, the sum of this and earlier gradients weighted by row t of C, meets the records, and `noise` is
        added to exactly that vector; the rest of the step is computed from what earlier calls have *released*. So where
        `noise` is exact (secure randomness on its lattice), correlation takes nothing of that away.
        """

    @abstractmethod
    def skip(self, steps: int) -> None:
        """Go on as if `steps` steps had neither seen a record nor drawn noise: they were lost."""

    @abstractmethod
    def state(self) -> dict[str, torch.Tensor]:
        """What has to be remembered between steps. It holds gradients without noise: never released."""

    @abstractmethod
    def restore(self, state: dict[str, torch.Tensor], step: int) -> None:
        """Go on after `step` steps from what `state` gave."""


class Triangular(Stream):
    """Streams of square strategies: histories of gradients and of releases, of which each step needs one weighted sum."""

    def __init__(self, rows: int, size: int, like: torch.Tensor) -> None:
        self._histories = like.new_zeros((2, rows, size))

    def state(self) -> dict[str, torch.Tensor]:
        """See `Stream`."""
        return {"histories": self._histories}

    def restore(self, state: dict[str, torch.Tensor], step: int) -> None:
        """See `Stream`."""
        self._histories.copy_(state["histories"])
        self.step = step


class Window(Triangular):
    """The last vectors themselves, in a ring.

    A step's weighted sum of all of them would read the whole ring at every step. Instead every fourth step reads it once and
    makes four steps' sums of the vectors so far. They need no memory of their own: a step's sum lies where its vector will,
    in the place of one that no later step refers to.
    """

    def __init__(self, rows: Floats, size: int, like: torch.Tensor) -> None:
        super().__init__(rows.shape[1] - 1, size, like)
        self._rows = rows
        self._ahead = min(_AHEAD, rows.shape[1] - 1)

    def release(self, gradient: torch.Tensor, noise: Any) -> torch.Tensor:
        """See `Stream`."""
        diagonal = float(self._rows[self.step, 0])
        if not self._ahead:
            found = noise(gradient * diagonal) / diagonal
            self.step += 1
            return found
        place = self._begin()
        query, earlier = self._histories[:, place]
        for lag in range(1, self.step % self._ahead + 1):  # what came since the sums were made
            for history, total in zip(self._histories, (query, earlier), strict=True):
                total.add_(history[(self.step - lag) % len(history)], alpha=float(self._rows[self.step, lag]))
        noised = noise(query.add_(gradient, alpha=diagonal))
        torch.sub(noised, earlier, out=earlier)
        released = earlier if diagonal == 1 else earlier.div_(diagonal)
        query.copy_(gradient)
        self.step += 1
        return released.clone()  # an optimizer may change what it is given

    def skip(self, steps: int) -> None:
        """See `Stream`."""
        for _ in range(steps):
            if self._ahead:
                self._histories[:, self._begin()] = 0
            self.step += 1

    def _begin(self) -> int:
        """Make the sums of the next steps if it is time to; the place of this step's."""
        _, width, _ = self._histories.shape
        if self.step % self._ahead == 0:
            lags = (self.step - 1 - np.arange(width)) % width + 1  # how long before this step a place's vector is
            weights = np.zeros((_AHEAD, width), dtype=np.float32 if self._histories.dtype == torch.float32 else float)
            for ahead, row in enumerate(self._rows[self.step : self.step + self._ahead]):
                reached = lags + ahead <= width
                weights[ahead, reached] = row[lags[reached] + ahead]
            places = (self.step + torch.arange(self._ahead)) % width
            for history in self._histories:
                if kernels.suit(history):
                    kernels.sum_rows(history, torch.from_numpy(weights), places)
                else:
                    history[places] = torch.from_numpy(weights[: self._ahead]).to(history) @ history
        return self.step % width


class Buffers(Triangular):
    """Sums of all earlier vectors with weights that decay: one a buffer."""

    def __init__(self, decays: Floats, weights: Floats, size: int, like: torch.Tensor) -> None:
        super().__init__(len(decays), size, like)
        self._decays = torch.as_tensor(decays, dtype=like.dtype, device=like.device)
        self._weights = torch.as_tensor(weights, dtype=like.dtype, device=like.device)

    def release(self, gradient: torch.Tensor, noise: Any) -> torch.Tensor:
        """See `Stream`."""
        query, earlier = self._weights @ self._histories
        found: torch.Tensor = noise(query.add_(gradient)) - earlier
        self._histories *= self._decays[:, None]
        for history, vector in zip(self._histories, (gradient, found), strict=True):
            history += vector
        self.step += 1
        return found

    def skip(self, steps: int) -> None:
        """See `Stream`."""
        for _ in range(steps):
            self._histories *= self._decays[:, None]
        self.step += steps


class Nodes(Stream):
    """The sums and the estimates of the nodes that the steps so far consist of, a level each."""

    def __init__(self, shares: Floats, size: int, like: torch.Tensor) -> None:
        self._shares = shares
        self._sums, self._estimates = like.new_zeros((2, len(shares), size))
        self._before = like.new_zeros(size)

    def release(self, gradient: torch.Tensor, noise: Any) -> torch.Tensor:
        """See `Stream`."""
        total, estimate, shares = gradient, None, self._shares
        end, level = self.step + 1, 0
        while True:
            found = noise(total.clone())
            if estimate is not None:  # both children of this node are known
                found = shares[level] * (found + estimate / (2 * shares[level - 1]))
            if not (self.step >> level) & 1:
                break
            total, estimate = total + self._sums[level], found + self._estimates[level]
            level += 1
        for lower in range(level):
            self._sums[lower].zero_()
            self._estimates[lower].zero_()
        self._sums[level], self._estimates[level] = total, found
        prefix = self._estimates.sum(0)
        step, self._before, self.step = prefix - self._before, prefix, end
        return step

    def skip(self, steps: int) -> None:
        """See `Stream`."""
        if steps:
            # The nodes above a lost step hold sums of earlier gradients, which must not be released without noise.
            raise UnsupportedError(
                "a tree cannot go on after steps that were lost; take another strategy, or start anew."
            )

    def state(self) -> dict[str, torch.Tensor]:
        """See `Stream`."""
        return {"sums": self._sums, "estimates": self._estimates, "before": self._before}

    def restore(self, state: dict[str, torch.Tensor], step: int) -> None:
        """See `Stream`."""
        for mine, saved in zip((self._sums, self._estimates, self._before), state.values(), strict=True):
            mine.copy_(saved)
        self.step = step
