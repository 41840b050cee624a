"""Any other layer: `torch.func.vmap` over the records, every record with a copy of the parameters of its own."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import combinations
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree
from torch.utils.hooks import RemovableHandle

from noiseproof.engine.graph import Contributions, GraphRecorder
from noiseproof.engine.rules.rule import Replacing, Rule
from noiseproof.errors import UnsupportedError

RecordDims = tuple[int | None, ...]
"""For every argument the dimension that counts records, or None if the records share it."""


class VmapRule(Rule):
    """Computes the layer's output record by record in one vmapped pass, with copies of its parameters (not of memory).

    The first tensor is taken to have the records in the layer's record dimension. Which of the others have one row a
    record and which the records share is told by their sizes, if what comes out is what the layer itself gave; a table
    with as many rows as there happen to be records is thus not taken for one row each. Each record is seen by the
    module as a batch of one, so nothing inside can mix records. It is slow, and writes every record's gradient out.
    """

    def __init__(self, layer: nn.Module, path: str, recorder: GraphRecorder, record_dim: int = 0) -> None:
        super().__init__(layer, path, recorder, record_dim)
        self._known: list[RecordDims] = []
        """What was seen to give the layer's own output."""

    def attach(self) -> Iterable[RemovableHandle]:
        """Hang the hooks on the layer."""
        return [self._after_forward(self._record)]

    def _record(self, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        """The output in place of the layer's own: the same, but knowing every record's share of each parameter."""
        if not self.recorder.recording:
            return None
        leaves, layout = pytree.tree_flatten((args, kwargs))
        choices = self._choices(leaves)
        if not choices:
            raise UnsupportedError(f"the layer {self._name} takes no tensor with a record dimension.")
        records = next(leaf.shape[dim] for leaf, dim in zip(leaves, choices[0], strict=True) if dim is not None)
        owned = {name: parameter for name, parameter in self.layer.named_parameters() if parameter.requires_grad}
        if records == 0 or not owned:
            return None
        copies = {
            name: parameter.detach().expand(records, *parameter.shape).requires_grad_()
            for name, parameter in owned.items()
        }
        for name, copy in copies.items():
            # Another engine that meets the copy must know what it stands for.
            copy.stands_for = owned[name]  # type: ignore[attr-defined]
        run = partial(self._apart, leaves, layout, copies, output)
        known = [dims for dims in choices if dims in self._known]
        if sum(isinstance(leaf, torch.Tensor) and leaf.dim() > 0 for leaf in leaves) == 1 or len(known) == 1:
            replaced = run((known or choices)[0])
        else:
            replaced = self._matching(choices, run, output, args, kwargs)

        def contributions(*errors: torch.Tensor | None) -> Contributions:
            found = zip(copies, errors, strict=True)
            return [(owned[name], error) for name, error in found if error is not None]

        outputs = [leaf for leaf in pytree.tree_leaves(replaced) if isinstance(leaf, torch.Tensor)]
        # The graph is followed through the layer: it may have used parameters that it does not own.
        self.recorder.record(outputs, self._name, contributions, inputs=None, targets=tuple(copies.values()))
        return replaced

    @property
    def _name(self) -> str:
        return f"{self.path or 'network'} ({type(self.layer).__name__})"

    def _choices(self, leaves: list[Any]) -> list[RecordDims]:
        """What the record dimensions may be by the arguments' sizes; those with most rows a record first."""
        tensors = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor) and leaf.dim() > 0]
        first = usual = self.record_dim
        if isinstance(self.layer, nn.RNNBase):
            first, usual = 0 if self.layer.batch_first else 1, 1
        elif isinstance(self.layer, nn.MultiheadAttention):
            first = usual = 0 if self.layer.batch_first else 1
        if not tensors or leaves[tensors[0]].dim() <= first:
            return []
        records = leaves[tensors[0]].shape[first]
        alike = [place for place in tensors[1:] if leaves[place].shape[usual : usual + 1] == (records,)]
        return [
            tuple(first if place == tensors[0] else usual if place in chosen else None for place in range(len(leaves)))
            for count in range(len(alike), -1, -1)
            for chosen in combinations(alike, count)
        ]

    def _apart(
        self, leaves: list[Any], layout: Any, copies: dict[str, torch.Tensor], output: Any, dims: RecordDims
    ) -> Any:
        """The layer's output, computed record by record."""

        def one(parameters: dict[str, torch.Tensor], row: list[torch.Tensor]) -> Any:
            remaining = iter(row)
            filled = [
                leaf if dim is None else next(remaining).unsqueeze(dim) for leaf, dim in zip(leaves, dims, strict=True)
            ]
            inner_args, inner_kwargs = pytree.tree_unflatten(filled, layout)
            return torch.func.functional_call(self.layer, parameters, inner_args, inner_kwargs)

        rows = [leaf for leaf, dim in zip(leaves, dims, strict=True) if dim is not None]
        in_dims = (0, [dim for dim in dims if dim is not None])
        try:
            with self.recorder.paused(), Replacing(UNROLLED), warnings.catch_warnings():
                # Torch warns of operations that it must loop over; that this rule is slow is said in its docstring.
                warnings.filterwarnings("ignore", message="There is a performance drop")
                apart = torch.func.vmap(one, in_dims=in_dims, randomness="different")(copies, rows)
        except RuntimeError as error:
            raise UnsupportedError(
                f"the layer {self._name} has no rule for per-record gradients and cannot be run by torch.func.vmap "
                "either; replace it, or freeze its parameters."
            ) from error
        return pytree.tree_map(self._joined, apart, output)

    def _matching(
        self,
        choices: list[RecordDims],
        run: Callable[[RecordDims], Any],
        output: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """The output by the first choice that gives what the layer itself gave (without dropout, if it has any)."""
        failure: UnsupportedError | None = None
        for dims in choices:
            try:
                replaced = run(dims)
                same = _close(replaced, output)
                if not same:
                    with self.recorder.paused(), torch.no_grad(), _without_dropout(self.layer):
                        same = _close(run(dims), self.layer.forward(*args, **kwargs))
            except UnsupportedError as error:
                failure = failure or error
                continue
            if same:
                if dims not in self._known:
                    self._known.append(dims)
                return replaced
        raise failure or UnsupportedError(
            f"the layer {self._name} does not give the same for records one by one as for a batch; which of its "
            "arguments have one row a record is not clear, or it mixes records."
        )

    def _joined(self, apart: Any, together: Any) -> Any:
        """Per-record outputs, each a batch of one, put together as the layer's own output was."""
        if not isinstance(apart, torch.Tensor):
            return together
        records, alone = len(apart), list(apart.shape[1:])
        for dim, size in enumerate(alone):
            if size == 1 and list(together.shape) == [*alone[:dim], records, *alone[dim + 1 :]]:
                return apart.squeeze(dim + 1).movedim(0, dim)
        raise UnsupportedError(
            f"the layer {self._name} gave a tensor of shape {tuple(together.shape)} for {records} records, but "
            f"{tuple(alone)} for one alone; each must have its own place in every output."
        )


def _close(found: Any, expected: Any) -> bool:
    """Whether two outputs are the same but for rounding."""
    for left, right in zip(pytree.tree_leaves(found), pytree.tree_leaves(expected), strict=True):
        if isinstance(left, torch.Tensor) and left.is_floating_point():
            precision = torch.finfo(right.dtype).eps ** 0.5
            size = float(right.detach().nan_to_num(0.0, 0.0, 0.0).abs().amax()) if right.numel() else 0.0
            if not torch.allclose(left, right, rtol=precision, atol=precision * size, equal_nan=True):
                return False
    return True


@contextmanager
def _without_dropout(layer: nn.Module) -> Iterator[None]:
    training = [(part, part.training) for part in layer.modules()]
    layer.eval()
    try:
        with Replacing({F.dropout: lambda inputs, *_, **__: inputs}):
            yield
    finally:
        for part, before in training:
            part.training = before


# Recurrences in plain operations, step by step: for `torch.func.vmap`, which cannot look into torch's own.


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
