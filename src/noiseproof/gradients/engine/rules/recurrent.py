"""LSTM, GRU and RNN: the errors at the gates of every step, seen by running the recurrence ourselves."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn.utils.rnn import PackedSequence

from noiseproof.errors import UnsupportedError
from noiseproof.gradients.engine.contribution import Contribution
from noiseproof.gradients.engine.outer_products import Factor, OuterProducts, Sums
from noiseproof.gradients.engine.rules.cells import Cell, Elman, Gru, Lstm
from noiseproof.gradients.engine.rules.intercept import InterceptRule
from noiseproof.gradients.engine.rules.unrolled import over_layers
from noiseproof.gradients.engine.tape import Contributions, Tape

_CELLS: dict[Any, Cell] = {
    torch._VF.lstm: Lstm(),
    torch._VF.gru: Gru(),
    torch._VF.rnn_tanh: Elman(tanh=True),
    torch._VF.rnn_relu: Elman(tanh=False),
}


class _Recurrence(torch.autograd.Function):
    """One layer in one direction. The gradients of the two probes are the errors at the gates."""

    @staticmethod
    def forward(
        ctx: Any,
        cell: Cell,
        tape: Tape,
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
        gates = flat @ weight_ih.T if bias_ih is None else torch.addmm(bias_ih, flat, weight_ih.T)
        hidden, final, saved = cell.forward(gates.view(*inputs.shape[:2], len(weight_ih)), states, weight_hh, bias_hh)
        ctx.cell, ctx.tape = cell, tape
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
        if ctx.tape.errors_only:
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
    """What layers and single cells share: one layer in one direction, captured."""

    def _run(
        self, cell: Cell, inputs: torch.Tensor, weights: list[torch.Tensor], states: tuple[torch.Tensor, ...]
    ) -> tuple[torch.Tensor, ...]:
        """One layer in one direction, captured."""
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
                cell, self.tape, notes, inputs, at_input, at_hidden, weight_ih, weight_hh, bias_ih, bias_hh, *states
            )
        activation, hidden = inputs.detach(), notes[0]

        def settle(input_error: torch.Tensor, hidden_error: torch.Tensor) -> Contributions:
            input_errors = Factor(input_error.transpose(0, 1))
            hidden_errors = input_errors if cell.one_error else Factor(hidden_error.transpose(0, 1))
            found: list[tuple[torch.Tensor | None, Contribution]] = [
                (weight_ih, OuterProducts(input_errors, Factor(activation.transpose(0, 1)))),
                (weight_hh, OuterProducts(hidden_errors, Factor(hidden[:-1].transpose(0, 1)))),
            ]
            if bias_ih is not None:
                sums = Sums(input_errors)
                found += [(bias_ih, sums), (bias_hh, sums if cell.one_error else Sums(hidden_errors))]
            return [(parameter, part) for parameter, part in found if parameter is not None and parameter.requires_grad]

        self.tape.attach(
            (outputs[0],),
            self.path,
            settle,
            inputs=(inputs, *states),
            keep=(activation, hidden),
            record_dim=1,
            targets=(at_input, at_hidden),
        )
        return outputs


class CellRule(_Recurrent):
    """`nn.LSTMCell`, `nn.GRUCell` and `nn.RNNCell`: one step, often used many times in a forward pass."""

    functions = tuple(_SINGLE)

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


class RecurrentRule(_Recurrent):
    """`nn.LSTM`, `nn.GRU` and `nn.RNN`, with any number of layers and directions."""

    module: nn.RNNBase
    functions = tuple(_CELLS)

    def enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Before the layer runs."""
        if self.tape.recording and isinstance(args[0] if args else kwargs.get("input"), PackedSequence):
            raise UnsupportedError(
                f"the layer {self.path} ({type(self.module).__name__}) was given a PackedSequence, whose gradients by "
                "record are not known; give it padded sequences and leave the padding out of the loss."
            )
        super().enter(args, kwargs)

    def replacement(self, function: Any, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
        """What is run in place of torch's own recurrence."""
        return over_layers(partial(self._run, _CELLS[function]), *args, **kwargs)
