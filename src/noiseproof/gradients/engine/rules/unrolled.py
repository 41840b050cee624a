"""Recurrences in plain operations, step by step: for `torch.func.vmap`, which cannot look into torch's own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.nn import functional as F

Tensors = tuple[torch.Tensor, ...]
Run = Callable[[torch.Tensor, list[torch.Tensor], Tensors], Tensors]
"""One layer in one direction: (inputs, weights, first states) to (outputs, *last states), all time-major."""
Step = Callable[[torch.Tensor, torch.Tensor, Tensors], Tensors]
"""One step: (the input's share of the gates, the hidden state's share, states) to the next states."""


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
            outputs = F.dropout(outputs, dropout, training)
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


def _lstm(at_input: torch.Tensor, at_hidden: torch.Tensor, states: Tensors) -> Tensors:
    keep, forget, new, out = (at_input + at_hidden).chunk(4, dim=-1)
    cell = forget.sigmoid() * states[1] + keep.sigmoid() * new.tanh()
    return out.sigmoid() * cell.tanh(), cell


def _gru(at_input: torch.Tensor, at_hidden: torch.Tensor, states: Tensors) -> Tensors:
    reset_in, update_in, new_in = at_input.chunk(3, dim=-1)
    reset_hidden, update_hidden, new_hidden = at_hidden.chunk(3, dim=-1)
    new = (new_in + (reset_in + reset_hidden).sigmoid() * new_hidden).tanh()
    return (new + (update_in + update_hidden).sigmoid() * (states[0] - new),)


def _tanh(at_input: torch.Tensor, at_hidden: torch.Tensor, states: Tensors) -> Tensors:
    return ((at_input + at_hidden).tanh(),)


def _relu(at_input: torch.Tensor, at_hidden: torch.Tensor, states: Tensors) -> Tensors:
    return ((at_input + at_hidden).relu(),)


def _run(step: Step, inputs: torch.Tensor, weights: list[torch.Tensor], states: Tensors) -> Tensors:
    weight_ih, weight_hh, *rest = weights
    bias_ih, bias_hh = rest[:2] if len(rest) >= 2 else (None, None)
    projection = rest[-1] if len(rest) % 2 else None
    outputs = []
    for share in F.linear(inputs, weight_ih, bias_ih).unbind(0):
        hidden, *others = step(share, F.linear(states[0], weight_hh, bias_hh), states)
        hidden = hidden if projection is None else F.linear(hidden, projection)
        states = (hidden, *others)
        outputs.append(hidden)
    return torch.stack(outputs), *states


def _cell(
    step: Step, inputs: torch.Tensor, states: torch.Tensor | Tensors, *weights: torch.Tensor | None
) -> torch.Tensor | Tensors:
    states = states if isinstance(states, tuple) else (states,)
    own = [weight for weight in weights if weight is not None]
    _, *after = _run(step, inputs.unsqueeze(0), own, states)
    return tuple(after) if len(after) > 1 else after[0]


UNROLLED: dict[Any, Callable[..., Any]] = {
    torch._VF.lstm: partial(over_layers, partial(_run, _lstm)),
    torch._VF.gru: partial(over_layers, partial(_run, _gru)),
    torch._VF.rnn_tanh: partial(over_layers, partial(_run, _tanh)),
    torch._VF.rnn_relu: partial(over_layers, partial(_run, _relu)),
    torch._VF.lstm_cell: partial(_cell, _lstm),
    torch._VF.gru_cell: partial(_cell, _gru),
    torch._VF.rnn_tanh_cell: partial(_cell, _tanh),
    torch._VF.rnn_relu_cell: partial(_cell, _relu),
}
"""What computes the same as torch's own function."""
