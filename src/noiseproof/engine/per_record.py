"""PerRecordGradients: hooks on a network that make every record's gradient known after one backward pass."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from random import SystemRandom
from types import TracebackType
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.rnn import PackedSequence
from torch.utils import checkpoint
from torch.utils._pytree import tree_leaves

from noiseproof.engine.checks import GradientCheck, refuse_mixing_layers
from noiseproof.engine.clipping import Flat, RecordGradients
from noiseproof.engine.contributions import Contribution, Explicit, added, full_precision
from noiseproof.engine.graph import Following
from noiseproof.engine.passes import Alone, checked
from noiseproof.engine.recorder import Recorder
from noiseproof.engine.rules import rules_for
from noiseproof.engine.twins import MIXED, TwinBatch
from noiseproof.engine.walk import Routes
from noiseproof.errors import SettingError, UnsupportedError

_READING: Any = getattr(checkpoint, "GraphExecGroup", nullcontext)
"""In here a checkpointed part is run once for all that is read of it (in older versions of torch, once each)."""


class PerRecordGradients:
    """Every record's gradient in a network's trainable parameters, from one forward and one backward pass.

    The backward pass goes no further than the activations. Records are followed from their losses through the operations of
    the forward pass, wherever they lie in their results, to the places where they meet parameters (or what is made of
    parameters alone); norms and sums of per-record gradients are made from what the operations kept and the errors there,
    when asked for. Behind an operation through which records cannot be followed, autograd is run once a record, which is
    right and slow. The module is not changed; hooks on recurrent layers, and on those with a rule of their own, are taken
    off by `close`, and in copies of the module they do nothing.

    No operation may mix records. What is known to is refused at once. Beyond that, the first backward pass of two records or
    more is run twice, with other weights on the losses: every error must scale with its own record's weight alone, else
    `UnsupportedError` names the layer (`check=False` trusts you). What is made of many records and has lost their dimension
    (the mean of a batch, added to each) looks like a parameter to that test, so that the forward pass is also run on a twin
    batch in which other records differ, records first. What is done to the losses outside of the network, by numbers without a
    gradient, is not seen from here; `PrivateGradients` and `make_private` follow their twins up to the losses.

    Args:
        module: The network.
        check: Whether to look for mixed records.

    Raises:
        UnsupportedError: If a layer mixes records.
        SettingError: If nothing is trainable.

    Examples:
        >>> network = nn.Linear(4, 2)
        >>> with PerRecordGradients(network) as engine:
        ...     losses = nn.functional.cross_entropy(network(torch.randn(8, 4)), torch.zeros(8).long(), reduction="none")
        ...     gradients = engine.backward(losses)
        >>> gradients.squared_norms().shape
        torch.Size([8])
        >>> [tuple(each.shape) for each in gradients.materialise()]
        [(8, 2, 4), (8, 2)]

    Formal guarantee
    ----------------
    None by itself: what comes out is as private as the records. It gives clipping its premise: if the losses' i-th
    entry depends on no record but the i-th, so does the i-th gradient.
    """

    def __init__(self, module: nn.Module, *, check: bool = True) -> None:
        refuse_mixing_layers(module)
        named = [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad]
        if not named:
            raise SettingError("the network has no trainable parameter, so there is nothing to take gradients of.")
        for name, parameter in named:
            if parameter.is_complex():
                raise UnsupportedError(
                    f"the parameter {name} is complex, and no norm of a record's gradient is defined for it here; keep its real "
                    "and imaginary parts as a real parameter with a last dimension of two, and use torch.view_as_complex of it."
                )
        self.module = module
        self.parameters: list[nn.Parameter] = [parameter for _, parameter in named]
        """Trainable parameters, in the order of `module.parameters()`."""
        self._flat = Flat(self.parameters)
        self._owned = [
            (own, name, parameter, parameter.requires_grad)
            for owner in module.modules()
            # A scripted module hands out a view that cannot be asked for a name.
            for own in [owner._parameters if isinstance(owner._parameters, dict) else dict(owner._parameters.items())]
            for name, parameter in own.items()
            if parameter is not None
        ]
        self._recorder = Recorder()
        self._routes = Routes({id(parameter): name for name, parameter in named}, self._recorder)
        self.layers: dict[str, list[int]] = {}
        """Modules that own parameters, by path: the places of their parameters in `parameters`."""
        taken: set[int] = set()
        for path, owner in module.named_modules():
            mine = (
                {self._routes.indices.get(id(parameter), -1) for parameter in owner.parameters(recurse=False)}
                - taken
                - {-1}
            )
            if mine:  # a shared parameter belongs to the first layer that owns it
                taken |= mine
                self.layers[path] = sorted(mine)
        self._has_bags = any(isinstance(layer, nn.EmbeddingBag) for layer in module.modules())
        self._frozen_norms = [layer for layer in module.modules() if isinstance(layer, _BatchNorm)]
        self._unchecked = check
        self._handles = [handle for rule in rules_for(module, self._recorder) for handle in rule.attach()]
        self._mixed: _Mixed | None = None
        """The last forward pass, if what it gives for one of the records in its first dimension depends on others."""
        if check:
            self._handles.append(module.register_forward_pre_hook(self._before_forward, with_kwargs=True))
            self._handles.append(module.register_forward_hook(self._after_forward))

    def backward(self, losses: torch.Tensor, *, check: bool = False) -> RecordGradients:
        """Every record's gradient of its own loss; `param.grad` stays as it is, and the graph is freed.

        Args:
            losses: One loss a record, (records,), from a forward pass of the network with gradients on.
            check: Whether to look for mixed records again, and to compare a record's gradient with autograd's.

        Raises:
            UnsupportedError: If per-record gradients cannot be had from these losses; the message says why.
        """
        if losses.dim() != 1:
            raise SettingError(f"losses must have the shape (records,), one loss a record, not {tuple(losses.shape)}.")
        self._check_parameters(thoroughly=check)
        records = losses.shape[0]
        parts: list[list[Contribution]] = [[] for _ in self.parameters]
        mixed, self._mixed = self._mixed, None
        mixes = mixed is not None and mixed.records == records and not mixed.is_apart(self.module, losses)
        if records == 1:  # nobody to be told from
            for index, gradient in enumerate(self._by_autograd(losses)):
                if gradient is not None:
                    dense = gradient.to_dense() if gradient.is_sparse else gradient
                    parts[index].append(Explicit(dense.unsqueeze(0)))
        elif records:
            with _READING():
                followed = Following(losses, self._routes)
            if not followed.uses:
                raise _unknown_losses()
            if check or self._unchecked:
                self._follow_checked(losses, followed, parts, SystemRandom().randrange(records) if check else None)
            else:
                with self._recorder.errors_alone():
                    found, _ = followed.run(losses, torch.ones_like(losses), retain_graph=followed.repeats)
                for index, part in followed.contributions(range(len(found)), found):
                    parts[index].append(part)
        if mixes:
            self._unchecked = True
            raise UnsupportedError(MIXED)
        contributions = [added(those) if those else None for those in parts]
        return RecordGradients(records, self._flat, self.layers.values(), contributions)

    def split(self, vector: torch.Tensor) -> list[torch.Tensor]:
        """Views of a vector over all parameters, one of each parameter's shape."""
        return self._flat.split(vector)

    def zeros(self) -> torch.Tensor:
        """A vector over all parameters, of zeros."""
        return self._flat.zeros(self._flat.size)

    @property
    def recording(self) -> bool:
        """Whether a forward pass that runs now counts: gradients are on, and nothing is paused."""
        return self._recorder.recording

    def paused(self) -> AbstractContextManager[None]:
        """Forward passes in here are not recorded: for a network that only passes gradients on, or public records."""
        return self._recorder.paused()

    def close(self) -> None:
        """Take the hooks off the module."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def __enter__(self) -> PerRecordGradients:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _before_forward(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        given = _tensors((args, kwargs))
        if self._has_bags:  # where they begin is not theirs, though there may be as many
            given = [tensor for place, tensor in enumerate(given) if not place or not _begins(tensor)]
        records = len(given[0]) if given and given[0].numel() else 0  # none may lie in another dimension
        if self._unchecked and self._recorder.recording and records > 1:
            twin = TwinBatch([tensor for tensor in given if len(tensor) == records], records, 0, module)
            self._mixed = _Mixed(records, args, kwargs) if twin.tells_apart(args, kwargs) else None

    def _after_forward(self, module: nn.Module, args: Any, output: Any) -> None:
        if self._mixed is not None and self._recorder.recording:
            self._mixed.outputs = tree_leaves(output)

    def _check_parameters(self, *, thoroughly: bool) -> None:
        """Refuse parameters that were replaced, frozen or unfrozen: they would get noise and no gradient, or neither."""
        same = all(
            owner.get(name) is parameter and parameter.requires_grad == trainable
            for owner, name, parameter, trainable in self._owned
        )
        if same and thoroughly:
            same = {id(parameter) for parameter in self.module.parameters()} == {id(row[2]) for row in self._owned}
        if any(layer.training for layer in self._frozen_norms):
            refuse_mixing_layers(self.module)
        if not same:
            raise UnsupportedError(
                "a parameter of the network was put in place, replaced, frozen or made trainable after the engine had been "
                "attached; close the engine and make a new one."
            )

    def _by_autograd(self, losses: torch.Tensor) -> Sequence[torch.Tensor | None]:
        """One loss's gradient, as an ordinary backward pass gives it."""
        if not losses.requires_grad:
            raise _unknown_losses()
        gradients = torch.autograd.grad(losses.sum(), self.parameters, allow_unused=True)
        if all(gradient is None for gradient in gradients):
            raise _unknown_losses()
        return gradients

    def _follow_checked(
        self, losses: torch.Tensor, followed: Following, parts: list[list[Contribution]], record: int | None
    ) -> None:
        """Put every record's gradients into `parts`, and check that records are kept apart, and of one its gradient."""
        alone = None if record is None else Alone(record, self.parameters)
        compared = None if record is None else GradientCheck(record, self.parameters)
        left = set(range(len(parts)))
        sections = checked(losses, followed, alone, self._recorder.errors_alone)
        for section, (uses, found) in enumerate(sections):
            for index, part in followed.contributions(uses, found):
                parts[index].append(part)
            found.clear()  # errors that no contribution is made of, and that `enumerate` would hold
            if alone is None or compared is None:
                continue
            # Each parameter as soon as nothing more comes, so that not all of autograd's gradients are held.
            done = sorted(left - followed.behind(section))
            if done:
                left -= set(done)
                flat = Flat([self.parameters[index] for index in done])
                own = [added(parts[index]) if parts[index] else None for index in done]
                with full_precision():
                    compared.look(
                        RecordGradients(len(losses), flat, [range(len(done))], own),
                        [alone.take(index) for index in done],
                    )
        self._unchecked = False
        if compared is not None:
            compared.judge()


@dataclass
class _Mixed:
    """A forward pass that, if records lie in the first dimension of what it was given, mixes them; they may lie in another."""

    records: int
    args: Any
    kwargs: Any
    outputs: Sequence[Any] = ()

    def is_apart(self, module: nn.Module, losses: torch.Tensor) -> bool:
        """Whether there is a dimension of as many that counts records, which the dimension is of that losses tell apart."""
        given = [tensor for tensor in _tensors((self.args, self.kwargs)) if tensor.dim() > 1]
        dims = {dim for tensor in given for dim in range(tensor.dim()) if tensor.shape[dim] == self.records}
        counting = self._counting(losses) if dims - {0} else {}
        for dim in dims if counting else ():
            batch = [tensor for tensor in given if tensor.shape[dim : dim + 1] == (self.records,)]
            twin = TwinBatch(batch, self.records, 0, module, dim=dim)
            if not twin.tells_apart(self.args, self.kwargs, dim, counting):
                return True
        return False

    def _counting(self, losses: torch.Tensor) -> dict[int, int]:
        """The dimension of outputs, by their places, in which a record's loss depends on its own row alone; none if several."""
        places = [
            place for place, each in enumerate(self.outputs) if isinstance(each, torch.Tensor) and each.requires_grad
        ]
        record = SystemRandom().randrange(self.records)
        wanted = [self.outputs[place] for place in places]
        if not wanted or not losses.requires_grad:
            return {}
        errors = torch.autograd.grad(losses[record], wanted, retain_graph=True, allow_unused=True)
        found = {}
        for place, error in zip(places, errors, strict=True):
            if error is None or not bool(error.any()):
                continue
            there = error.nonzero()
            own = [
                dim
                for dim, size in enumerate(error.shape)
                if size == self.records and bool((there[:, dim] == record).all())
            ]
            if len(own) != 1:
                return {}
            found[place] = own[0]
        return found


def _tensors(given: Any) -> list[torch.Tensor]:
    """What may have records in it; packed sequences that were put in another order have none that could be told."""
    leaves = tree_leaves(given, is_leaf=lambda each: isinstance(each, PackedSequence))
    packed = [leaf.data for leaf in leaves if isinstance(leaf, PackedSequence) and leaf.sorted_indices is None]
    return packed + [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.dim()]


def _begins(tensor: torch.Tensor) -> bool:
    """Whether a tensor may say at which places something begins, one behind the other."""
    whole = tensor.dim() == 1 and tensor.numel() > 0 and tensor.dtype in (torch.int32, torch.int64)
    return whole and int(tensor[0]) == 0 and bool((tensor.diff() >= 0).all())


def _unknown_losses() -> UnsupportedError:
    return UnsupportedError("these losses do not come from a forward pass of the network; run it with gradients on.")


def check_rule(layer: nn.Module, inputs: torch.Tensor, *, tolerance: float = 1e-4) -> None:
    """Try a layer's rule (or how records are followed through it) against one backward pass a record.

    Examples:
        >>> check_rule(nn.Linear(3, 2), torch.randn(4, 5, 3))

    Args:
        layer: The layer, with trainable parameters.
        inputs: Something it can be given, records first, two of them at least; any numbers will do.
        tolerance: How far gradients may be off, in units of the largest.

    Raises:
        UnsupportedError: If a record's gradient is not what autograd gives for the record alone.
        SettingError: If there are fewer than two records.
    """
    if len(inputs) < 2:
        raise SettingError("a rule is tried on two records or more, since one cannot be told from another otherwise.")

    def losses(records: torch.Tensor) -> torch.Tensor:
        output = layer(records).flatten(1)
        return (output.sin() * torch.linspace(0.5, 1.5, output.shape[1]).to(output)).sum(1)

    with PerRecordGradients(layer) as engine:
        found = engine.backward(losses(inputs)).materialise()
    for record in range(len(inputs)):
        alone = torch.autograd.grad(losses(inputs[record : record + 1]).sum(), engine.parameters, allow_unused=True)
        for own, expected in zip(found, alone, strict=True):
            wanted = torch.zeros_like(own[record]) if expected is None else expected
            if float((own[record] - wanted).abs().max()) > tolerance * max(1e-30, float(wanted.abs().max())):
                raise UnsupportedError(
                    f"the gradient of record {record} in a parameter of {type(layer).__name__} is not what autograd gives for "
                    "that record alone; the rule does not fit what the layer computes."
                )
