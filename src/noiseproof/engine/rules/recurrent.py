"""Recurrent cells run over all steps at once, forwards and backwards, so that the error at every gate is seen.

Everything is time-major: (steps, records, ...). The backward passes first form all local derivatives in large
operations, and leave to the loop over steps only what truly depends on the step after.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from noiseproof import kernels
from noiseproof.engine.contributions import Contribution, widened
from noiseproof.engine.products import Factor, OuterProducts, Sums, linear
from noiseproof.engine.recorder import Contributions, Recorder
from noiseproof.engine.rules.rule import InterceptRule, register_rule

Tensors = tuple[torch.Tensor, ...]
Run = Callable[[torch.Tensor, list[torch.Tensor], Tensors], Tensors]
"""One layer in one direction: (inputs, weights, first states) to (outputs, *last states), all time-major."""


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
        if kernels.suit_lstm(gates, weight) and kernels.lstm_forward(gates, weight, hidden, cell, squashed):
            return hidden, (hidden[-1].clone(), cell[-1].clone()), (gates, cell, squashed)
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
        dh = errors[-1].clone() if final[0] is None else errors[-1] + final[0]
        dc = torch.zeros_like(dh) if final[1] is None else final[1].clone()
        last = dh.contiguous(), dc.contiguous()
        if kernels.suit_lstm(gates, weight, *last) and kernels.suit_kind(errors):
            at_gates = torch.empty_like(gates)
            if kernels.lstm_backward((gates, cell, squashed), weight, errors, *last, at_gates):
                return at_gates, at_gates, last
        keep, forget, new, out = gates.view(steps, records, 4, width).unbind(2)
        local = gates.new_empty(steps, records, 4, width)
        torch.mul(new * keep, 1 - keep, out=local[:, :, 0])
        torch.mul(cell[:-1] * forget, 1 - forget, out=local[:, :, 1])
        torch.mul(keep, 1 - new * new, out=local[:, :, 2])
        torch.mul(squashed * out, 1 - out, out=local[:, :, 3])
        through = (out * (1 - squashed * squashed)).unbind(0)
        by_cell, by_hidden = local[:, :, :3].unbind(0), local[:, :, 3].unbind(0)
        by_gate, error, kept = local.flatten(2).unbind(0), errors.unbind(0), forget.unbind(0)
        for step in range(steps - 1, -1, -1):
            dc.addcmul_(dh, through[step])
            by_cell[step].mul_(dc.unsqueeze(1))
            by_hidden[step].mul_(dh)
            dc.mul_(kept[step])
            dh = torch.addmm(error[step - 1], by_gate[step], weight) if step else by_gate[step] @ weight
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


# LSTM, GRU and RNN: the errors at the gates of every step, seen by running the recurrence ourselves.


_CELLS: dict[Any, Cell] = {
    torch._VF.lstm: Lstm(),
    torch._VF.gru: Gru(),
    torch._VF.rnn_tanh: Elman(tanh=True),
    torch._VF.rnn_relu: Elman(tanh=False),
}


def over_layers(
    run: Run,
    inputs: torch.Tensor,
    states: torch.Tensor | Tensors,
    weights: list[torch.Tensor],
    bias: bool,
    layers: int,
    dropout: float,
    training: bool,
    bidirectional: bool,
    batch_first: bool,
) -> Tensors:
    """What `torch.lstm` and its kin do with the arguments they take: layers on top of layers, in both directions."""
    states = states if isinstance(states, tuple) else (states,)
    directions = 2 if bidirectional else 1
    each = len(weights) // (layers * directions)
    outputs = inputs.transpose(0, 1) if batch_first else inputs
    finals: list[Tensors] = []
    for layer in range(layers):
        if layer and dropout:
            outputs = functional.dropout(outputs, dropout, training)
        sides = []
        for direction in range(directions):
            place = layer * directions + direction
            own = weights[place * each : (place + 1) * each]
            first = tuple(state[place] for state in states)
            output, *final = run(outputs.flip(0) if direction else outputs, own, first)
            sides.append(output.flip(0) if direction else output)
            finals.append(tuple(final))
        outputs = sides[0] if directions == 1 else torch.cat(sides, dim=2)
    last = tuple(torch.stack(parts) for parts in zip(*finals, strict=True))
    return outputs.transpose(0, 1) if batch_first else outputs, *last


class _Recurrence(torch.autograd.Function):
    """One layer in one direction. The gradients of the two probes are the errors at the gates."""

    @staticmethod
    def forward(
        ctx: Any,
        cell: Cell,
        recorder: Recorder,
        notes: list[torch.Tensor],
        inputs: torch.Tensor,
        at_input: torch.Tensor,
        at_hidden: torch.Tensor,
        weight_ih: torch.Tensor,
        weight_hh: torch.Tensor,
        bias_ih: torch.Tensor | None,
        bias_hh: torch.Tensor | None,
        *states: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        if cell.one_error and bias_ih is not None and bias_hh is not None:
            bias_ih, bias_hh = bias_ih + bias_hh, None
        flat = inputs.flatten(0, 1)
        gates = linear(flat, weight_ih, bias_ih)
        hidden, final, saved = cell.forward(gates.view(*inputs.shape[:2], len(weight_ih)), states, weight_hh, bias_hh)
        ctx.cell, ctx.recorder = cell, recorder
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(inputs, hidden, weight_ih, weight_hh, *saved)
        notes.append(hidden)
        return hidden[1:], *final

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, error: torch.Tensor | None, *final: torch.Tensor | None) -> tuple[Any, ...]:
        inputs, hidden, weight_ih, weight_hh, *saved = ctx.saved_tensors
        error = torch.zeros_like(hidden[1:]) if error is None else error
        needs = ctx.needs_input_grad
        with torch.autocast(inputs.device.type, enabled=False):
            at_input, at_hidden, first = ctx.cell.backward(tuple(saved), weight_hh, error, final)
            at_inputs = at_input @ weight_ih if needs[3] else None
        if ctx.recorder.errors_only:
            return None, None, None, at_inputs, at_input, at_hidden, None, None, None, None, *first
        # An ordinary backward pass through a watched network: the weights' own gradients, as torch would give them.
        flat_input, flat_hidden = at_input.flatten(0, 1), at_hidden.flatten(0, 1)
        weights = (
            flat_input.T @ inputs.flatten(0, 1) if needs[6] else None,
            flat_hidden.T @ hidden[:-1].flatten(0, 1) if needs[7] else None,
            flat_input.sum(0) if needs[8] else None,
            flat_hidden.sum(0) if needs[9] else None,
        )
        return None, None, None, at_inputs, None, None, *weights, *first


_SINGLE: dict[Any, Cell] = {
    torch._VF.lstm_cell: _CELLS[torch._VF.lstm],
    torch._VF.gru_cell: _CELLS[torch._VF.gru],
    torch._VF.rnn_tanh_cell: _CELLS[torch._VF.rnn_tanh],
    torch._VF.rnn_relu_cell: _CELLS[torch._VF.rnn_relu],
}


class _Recurrent(InterceptRule):
    """What layers and single cells share: one layer in one direction, recorded."""

    def _run(
        self, cell: Cell, inputs: torch.Tensor, weights: list[torch.Tensor], states: tuple[torch.Tensor, ...]
    ) -> tuple[torch.Tensor, ...]:
        """One layer in one direction, recorded."""
        weight_ih, weight_hh = weights[:2]
        # The states go from step to step, so the recurrence keeps the weights' precision, whatever is cast around it.
        inputs = inputs.to(weight_ih.dtype).contiguous()
        states = tuple(state.to(weight_ih.dtype) for state in states)
        bias_ih, bias_hh = weights[2:] if len(weights) == 4 else (None, None)
        shape = (*inputs.shape[:2], weight_ih.shape[0])
        at_input = inputs.detach().new_zeros(()).expand(shape).requires_grad_()
        at_hidden = inputs.detach().new_zeros(()).expand(shape).requires_grad_()
        notes: list[torch.Tensor] = []
        with torch.autocast(inputs.device.type, enabled=False):
            outputs: tuple[torch.Tensor, ...] = _Recurrence.apply(
                cell, self.recorder, notes, inputs, at_input, at_hidden, weight_ih, weight_hh, bias_ih, bias_hh, *states
            )
        activation, hidden = inputs.detach(), notes[0]

        def contributions(input_error: torch.Tensor, hidden_error: torch.Tensor) -> Contributions:
            def factor(values: torch.Tensor) -> Factor:
                return Factor(widened(values, weight_ih.dtype).transpose(0, 1))

            input_errors = factor(input_error)
            hidden_errors = input_errors if cell.one_error else factor(hidden_error)
            found: list[tuple[torch.Tensor | None, Contribution]] = [
                (weight_ih, OuterProducts(input_errors, factor(activation))),
                (weight_hh, OuterProducts(hidden_errors, factor(hidden[:-1]))),
            ]
            if bias_ih is not None:
                sums = Sums(input_errors)
                found += [(bias_ih, sums), (bias_hh, sums if cell.one_error else Sums(hidden_errors))]
            return [(parameter, part) for parameter, part in found if parameter is not None and parameter.requires_grad]

        self.recorder.record(
            [(outputs[0], 1), *((final, 0) for final in outputs[1:])],
            contributions,
            inputs=[(inputs, 1), *((state, 0) for state in states)],
            keep=(activation, hidden),
            record_dim=1,
            targets=(at_input, at_hidden),
        )
        return outputs


@register_rule(nn.LSTMCell, nn.GRUCell, nn.RNNCell)
class CellRule(_Recurrent):
    """`nn.LSTMCell`, `nn.GRUCell` and `nn.RNNCell`: one step, often used many times in a forward pass."""

    functions = tuple(_SINGLE)

    @property
    def suits(self) -> bool:
        """Not with weights that were put in later."""
        return super().suits and set(self.layer._parameters) <= {"weight_ih", "weight_hh", "bias_ih", "bias_hh"}

    def replacement(
        self,
        function: Any,
        inputs: torch.Tensor,
        states: torch.Tensor | tuple[torch.Tensor, ...],
        *weights: torch.Tensor | None,
    ) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """What is run in place of torch's own step."""
        states = states if isinstance(states, tuple) else (states,)
        own = [weight for weight in weights if weight is not None]
        _, *after = self._run(_SINGLE[function], inputs.unsqueeze(0), own, states)
        return tuple(after) if len(after) > 1 else after[0]


@register_rule(nn.LSTM, nn.GRU, nn.RNN)
class RecurrentRule(_Recurrent):
    """`nn.LSTM`, `nn.GRU` and `nn.RNN`, with any number of layers and directions."""

    layer: nn.RNNBase
    functions = tuple(_CELLS)

    @property
    def suits(self) -> bool:
        """Not with projected states, or weights that were put in later."""
        names = set(self.layer._flat_weights_names)
        return super().suits and not self.layer.proj_size and set(self.layer._parameters) == names

    def replacement(self, function: Any, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
        """What is run in place of torch's own recurrence; packed sequences are followed through torch's."""
        if isinstance(args[2], list):  # the weights; those of packed sequences come later
            return over_layers(partial(self._run, _CELLS[function]), *args, **kwargs)
        found: tuple[torch.Tensor, ...] = function(*args, **kwargs)
        return found
