"""Recurrent cells run over all steps at once, forwards and backwards, so that the error at every gate is seen.

Everything is time-major: (steps, records, ...). The backward passes first form all local derivatives in large
operations, and leave to the loop over steps only what truly depends on the step after.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

Tensors = tuple[torch.Tensor, ...]


class Cell(ABC):
    """One kind of recurrence: h_t from h_(t-1) and the input's share of the gates."""

    states: int = 1
    """Tensors of state that go from step to step (an LSTM has two)."""
    one_error: bool = True
    """Whether the two shares of the gates just add up: then their errors are the same, and `bias` is None."""

    @abstractmethod
    def forward(
        self, gates: torch.Tensor, states: Tensors, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> tuple[torch.Tensor, Tensors, Tensors]:
        """(hidden states with the first in front, final states, what backward needs); `gates` is overwritten."""

    @abstractmethod
    def backward(
        self, saved: Tensors, weight: torch.Tensor, errors: torch.Tensor, final: tuple[torch.Tensor | None, ...]
    ) -> tuple[torch.Tensor, torch.Tensor, Tensors]:
        """(errors at the input's share, errors at the hidden state's share, errors at the first states)."""


class Lstm(Cell):
    """Long short-term memory: gates i, f, g, o."""

    states = 2

    def forward(
        self, gates: torch.Tensor, states: Tensors, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> tuple[torch.Tensor, Tensors, Tensors]:
        """c_t = f c_(t-1) + i g; h_t = o tanh(c_t)."""
        steps, records, width = gates.shape[0], gates.shape[1], weight.shape[1]
        hidden, cell = (gates.new_empty(steps + 1, records, width) for _ in range(2))
        squashed = gates.new_empty(steps, records, width)
        hidden[0], cell[0] = states
        across = weight.T.contiguous()
        keep, forget, new, out = (gate.unbind(0) for gate in gates.view(steps, records, 4, width).unbind(2))
        both = gates[:, :, : 2 * width].unbind(0)
        now, h, c, tanh_c = gates.unbind(0), hidden.unbind(0), cell.unbind(0), squashed.unbind(0)
        for step in range(steps):
            now[step].addmm_(h[step], across)
            both[step].sigmoid_()
            new[step].tanh_()
            out[step].sigmoid_()
            torch.mul(keep[step], new[step], out=c[step + 1]).addcmul_(forget[step], c[step])
            torch.mul(torch.tanh(c[step + 1], out=tanh_c[step]), out[step], out=h[step + 1])
        return hidden, (hidden[-1].clone(), cell[-1].clone()), (gates, cell, squashed)

    def backward(
        self, saved: Tensors, weight: torch.Tensor, errors: torch.Tensor, final: tuple[torch.Tensor | None, ...]
    ) -> tuple[torch.Tensor, torch.Tensor, Tensors]:
        """The chain rule over c and h."""
        gates, cell, squashed = saved
        steps, records, width = squashed.shape
        keep, forget, new, out = gates.view(steps, records, 4, width).unbind(2)
        local = gates.new_empty(steps, records, 4, width)
        torch.mul(new * keep, 1 - keep, out=local[:, :, 0])
        torch.mul(cell[:-1] * forget, 1 - forget, out=local[:, :, 1])
        torch.mul(keep, 1 - new * new, out=local[:, :, 2])
        torch.mul(squashed * out, 1 - out, out=local[:, :, 3])
        through = (out * (1 - squashed * squashed)).unbind(0)
        by_cell, by_hidden = local[:, :, :3].unbind(0), local[:, :, 3].unbind(0)
        at_gates, error, kept = local.flatten(2).unbind(0), errors.unbind(0), forget.unbind(0)
        dh = error[-1] if final[0] is None else error[-1] + final[0]
        dc = torch.zeros_like(dh) if final[1] is None else final[1].clone()
        for step in range(steps - 1, -1, -1):
            dc.addcmul_(dh, through[step])
            by_cell[step].mul_(dc.unsqueeze(1))
            by_hidden[step].mul_(dh)
            dc.mul_(kept[step])
            dh = torch.addmm(error[step - 1], at_gates[step], weight) if step else at_gates[step] @ weight
        both = local.flatten(2)
        return both, both, (dh, dc)


class Gru(Cell):
    """Gated recurrent unit: gates r, z, n, where r acts on the hidden state's share of n."""

    one_error = False

    def forward(
        self, gates: torch.Tensor, states: Tensors, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> tuple[torch.Tensor, Tensors, Tensors]:
        """n = tanh(n_x + r n_h); h_t = n + z (h_(t-1) - n)."""
        steps, records, width = gates.shape[0], gates.shape[1], weight.shape[1]
        hidden = gates.new_empty(steps + 1, records, width)
        hidden[0] = states[0]
        across = weight.T.contiguous()
        candidates = gates.new_empty(steps, records, width)
        for step in range(steps):
            share = hidden[step] @ across if bias is None else torch.addmm(bias, hidden[step], across)
            now = gates[step]
            now[:, : 2 * width].add_(share[:, : 2 * width]).sigmoid_()
            reset, update, new = now.view(records, 3, width).unbind(1)
            candidates[step] = share[:, 2 * width :]
            new.addcmul_(reset, candidates[step]).tanh_()
            torch.lerp(new, hidden[step], update, out=hidden[step + 1])
        return hidden, (hidden[-1].clone(),), (gates, hidden, candidates)

    def backward(
        self, saved: Tensors, weight: torch.Tensor, errors: torch.Tensor, final: tuple[torch.Tensor | None, ...]
    ) -> tuple[torch.Tensor, torch.Tensor, Tensors]:
        """The chain rule over h."""
        gates, hidden, candidates = saved
        steps, records, width = candidates.shape
        reset, update, new = gates.view(steps, records, 3, width).unbind(2)
        at_input = gates.new_empty(steps, records, 3, width)
        torch.mul(1 - update, 1 - new * new, out=at_input[:, :, 2])
        torch.mul((hidden[:-1] - new) * update, 1 - update, out=at_input[:, :, 1])
        torch.mul(at_input[:, :, 2] * candidates, reset * (1 - reset), out=at_input[:, :, 0])
        at_hidden = at_input.clone()
        at_hidden[:, :, 2] *= reset
        dh = errors[-1] if final[0] is None else errors[-1] + final[0]
        for step in range(steps - 1, -1, -1):
            at_hidden[step].mul_(dh.unsqueeze(1))
            at_input[step].mul_(dh.unsqueeze(1))
            dh = dh * update[step]
            dh.addmm_(at_hidden[step].flatten(1), weight)
            if step:
                dh += errors[step - 1]
        return at_input.flatten(2), at_hidden.flatten(2), (dh,)


class Elman(Cell):
    """The plain recurrence h_t = tanh(...) or relu(...)."""

    def __init__(self, *, tanh: bool) -> None:
        self._tanh = tanh

    def forward(
        self, gates: torch.Tensor, states: Tensors, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> tuple[torch.Tensor, Tensors, Tensors]:
        """h_t = act(x share + W h_(t-1))."""
        hidden = gates.new_empty(len(gates) + 1, *states[0].shape)
        hidden[0] = states[0]
        across = weight.T.contiguous()
        for step in range(len(gates)):
            now = torch.addmm(gates[step], hidden[step], across)
            hidden[step + 1] = now.tanh_() if self._tanh else now.relu_()
        return hidden, (hidden[-1].clone(),), (hidden,)

    def backward(
        self, saved: Tensors, weight: torch.Tensor, errors: torch.Tensor, final: tuple[torch.Tensor | None, ...]
    ) -> tuple[torch.Tensor, torch.Tensor, Tensors]:
        """The chain rule over h."""
        after = saved[0][1:]
        local = 1 - after * after if self._tanh else (after > 0).to(after.dtype)
        dh = errors[-1] if final[0] is None else errors[-1] + final[0]
        for step in range(len(local) - 1, -1, -1):
            local[step].mul_(dh)
            dh = torch.addmm(errors[step - 1], local[step], weight) if step else local[step] @ weight
        return local, local, (dh,)
