"""A training loop of the user's own, watched: each `loss.backward()` brings records' gradients to the engine and no further."""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import MethodType
from typing import Any, Literal

import torch
from torch import nn
from torch.autograd import Variable
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data import DataLoader, default_collate
from torch.utils.hooks import RemovableHandle

from noiseproof.engine.collating import record_tensors
from noiseproof.engine.private_gradients import PrivateGradients
from noiseproof.errors import NoiseproofError, UnsupportedError
from noiseproof.integrations.loader import LoopSampler, OrderSampler
from noiseproof.integrations.losses import HalfBatch, RecordLosses, differentiable
from noiseproof.integrations.streams import StreamSampler

Reduction = Literal["mean", "sum"]
_HALF_CHECKS = 3
"""Batches whose loss is also computed for half of the records, to see that it is a mean over them."""


class WatchedLoop:
    """Hooks on a network, its optimizers and its loader's batches, between which the loop stays as it is.

    What the network gives is cut off from it. When a `loss.backward()` has brought gradients up to there, they are those of the
    records' own losses, with which the engine goes on: clipped, summed, noised.
    """

    def __init__(
        self,
        gradients: PrivateGradients,
        optimizers: Sequence[torch.optim.Optimizer],
        loader: DataLoader[Any],
        sampler: LoopSampler | OrderSampler | StreamSampler,
        *,
        loss_reduction: Reduction,
        scaler: torch.amp.GradScaler | None,
        ahead: int,
    ) -> None:
        self.gradients, self.optimizers, self.loader = gradients, optimizers, loader
        self.module = gradients.module
        self.stepped = False
        """Whether the optimizers' last `step` took a step; it takes none before the last piece of a step's sample."""
        self.record_shape: tuple[int, ...] = ()
        """The shape of what the network is given first of a record, once it was; () where records might be padded, since how
        long a batch is then tells how long its longest record is."""
        self._padded = getattr(loader, "collate_fn", None) is not default_collate
        self._sampler, self._ahead = sampler, ahead
        self._reduction, self._scaler = loss_reduction, scaler
        self._pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
        """What the network gave for the batch, with its graph, and what the loop was given instead."""
        self._losses_inside = self._called = False
        self._half: HalfBatch | None = None
        self._half_checks = 0
        self._paused = 0
        self._handles: list[RemovableHandle] = []
        self._own_steps: list[tuple[torch.optim.Optimizer, Any]] = []
        self._guard()

    def backward(self, losses: torch.Tensor) -> None:
        """Instead of `loss.backward()`: one loss a record, (records,), not reduced.

        Raises:
            NoiseproofError: If they are not the losses of the batch that the loader handed over.
        """
        expected = self._physical()
        if losses.shape != (expected,):
            raise NoiseproofError(
                f"the batch has {expected} records, but the losses have shape {tuple(losses.shape)}; give one loss a "
                "record (reduction='none')."
            )
        reduction, self._reduction = self._reduction, "sum"
        self._leave_half()
        try:
            losses.sum().backward()
        finally:
            self._reduction = reduction

    @contextmanager
    def paused(self) -> Iterator[None]:
        """While it lasts, the network is an ordinary one: for public or generated records, never for private ones."""
        self._paused += 1
        try:
            with self.gradients.paused():
                yield
        finally:
            self._paused -= 1

    def close(self) -> None:
        """Take everything off the model, the optimizers and the loader's batches: they are ordinary again, the loader empty."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        for optimizer, step in self._own_steps:
            optimizer.step = step  # type: ignore[method-assign]
        self.gradients.close()
        self._sampler.steps = 0

    def hand_over(self, batches: Iterator[Any]) -> Iterator[Any]:
        """The loader's batches, each noted when it is handed to the loop."""
        self._forget()
        try:
            for batch in batches:
                self._settle()
                drawn = self._sampler.drawn.popleft()
                if self.gradients.pending > self._ahead:
                    raise NoiseproofError(
                        "a batch was handed over but no `backward` came before the next; call it once for each batch, "
                        "since what is accounted for must be what ran."
                    )
                tensors = record_tensors(batch, max(drawn.records, 1))
                if not tensors:
                    raise UnsupportedError(
                        f"no tensor of the batch has {max(drawn.records, 1)} records in its first dimension; let the "
                        "collate_fn put one record after the other there."
                    )
                self.gradients.hand_over(tensors, drawn.records, last=drawn.last, owners=drawn.owners)
                yield batch
        except BaseException:  # the loop was left, or has failed: what it did not take stays unused
            self._forget()
            raise

    def _forget(self) -> None:
        self._pairs, self._losses_inside, self._called = [], False, False
        self._leave_half()
        self.gradients.forget_waiting()

    def _leave_half(self) -> None:
        if self._half is not None:
            self._half.leave()
            self._half = None

    def _physical(self) -> int:
        """Records of the batch in hand; an empty sample comes as one record, which counts for nothing."""
        if self.gradients.waiting is None:
            raise NoiseproofError(
                "the network is trained on something that its loader did not hand over; take batches from the loader that "
                "`make_private` was given (with accelerate: the prepared one), one `backward` each."
            )
        return max(self.gradients.waiting, 1)

    def _guard(self) -> None:
        """Put hooks on the network and the optimizers. They are functions, so that copies of the module hold none of this."""
        here = weakref.ref(self)

        def before(module: nn.Module, args: Any, kwargs: Any) -> None:
            training = here()
            if training is not None and module is training.module:
                training._before_forward(args, kwargs)

        def after(module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
            training = here()
            if training is None or module is not training.module:
                return output
            return training._after_forward(output)

        def failed(module: nn.Module, args: Any, output: Any) -> None:
            training = here()
            if training is not None and module is training.module:
                training._inside.leave()

        def raw(parameter: torch.Tensor) -> None:
            training = here()
            if training is not None and not training._paused:
                parameter.grad = None
                raise UnsupportedError(
                    "a gradient without noise has come to a parameter: the loss uses parameters outside of the model's "
                    "forward pass (a regularisation, a part called by itself). Use the optimizer's weight_decay, put all of it "
                    "into the model's forward, or compute what is public while `paused()`."
                )

        self._inside = RecordLosses(self._cut_losses)
        self._handles = [
            self.module.register_forward_pre_hook(before, with_kwargs=True, prepend=True),
            self.module.register_forward_hook(after, with_kwargs=True),
            self.module.register_forward_hook(failed, always_call=True),
            *(parameter.register_post_accumulate_grad_hook(raw) for parameter in self.gradients.parameters),
        ]
        self._own_steps = [(optimizer, optimizer.step) for optimizer in self.optimizers]
        for optimizer, own in self._own_steps:
            optimizer.step = MethodType(_private_step(here, own), optimizer)  # type: ignore[method-assign]

    def _before_forward(self, args: Any, kwargs: Any) -> None:
        self._settle()
        if self._watches() and self.gradients.waiting is not None:
            records = self._physical()
            if not self.record_shape and not self._padded:
                self.record_shape = next(
                    (tuple(leaf.shape[1:]) for leaf in record_tensors((args, kwargs), records)), ()
                )
            self._inside.enter(records)

    def _after_forward(self, output: Any) -> Any:
        self._inside.leave()
        if not self._watches():
            return output
        if self.gradients.waiting is None:
            if self.module.training and any(differentiable(leaf) for leaf in tree_leaves(output)):
                self._physical()  # says what is wrong
            return tree_map(_detached, output)  # an evaluation: whatever comes of it stays away from the parameters
        records = self._physical()
        if self._losses_inside:
            # The loss was computed inside, from records' own losses; nothing else may lead back to the parameters.
            return tree_map(
                lambda leaf: _detached(leaf) if isinstance(leaf, torch.Tensor) and leaf.dim() else leaf, output
            )

        def gate(leaf: Any) -> Any:
            if not differentiable(leaf):
                return leaf
            if leaf.dim() == 0 or len(leaf) != records:
                raise UnsupportedError(
                    f"the network gave an output of shape {tuple(leaf.shape)} for {records} records; its first dimension must "
                    "count them. A loss that the network computes itself must be a torch.nn.functional loss over its batch."
                )
            return self._cut(leaf)

        gated = tree_map(gate, output)
        if (
            self._pairs
            and self._half is None
            and self._reduction == "mean"
            and self._half_checks < _HALF_CHECKS
            and records > 1
        ):
            self._half = HalfBatch(records, [cut for _, cut in self._pairs])
            self._half.enter()
        return gated

    def _watches(self) -> bool:
        return torch.is_grad_enabled() and not self._paused

    def _cut(self, made: torch.Tensor) -> torch.Tensor:
        """A leaf in the place of what the network made: raw gradients go no further than to it."""
        cut = made.detach().requires_grad_()
        cut.register_hook(self._arrived)
        self._pairs.append((made, cut))
        return cut

    def _cut_losses(self, losses: torch.Tensor) -> torch.Tensor:
        self._losses_inside = True
        return self._cut(losses).mean()

    def _arrived(self, gradient: torch.Tensor) -> None:
        if not self._called:
            self._called = True
            Variable._execution_engine.queue_callback(self._finish)

    def _finish(self) -> None:
        """All gradients of a `loss.backward()` have come to where the network's outputs were cut off."""
        pairs, inside, half = self._pairs, self._losses_inside, self._half
        self._pairs, self._losses_inside, self._called = [], False, False
        records = self._physical()
        arrived = [(made, cut.grad) for made, cut in pairs if cut.grad is not None]
        factor = 1.0 if self._reduction == "sum" else float(records)
        if self._scaler is not None:
            factor /= self._scaler.get_scale()
        weights = [_wide(gradient) * factor for _, gradient in arrived]
        if inside:
            weights = _shares(weights)
        elif half is not None:
            self._half_checks += half.check()
        with torch.enable_grad():
            losses = None
            if self.gradients.waiting:
                # With what came back held fixed, the gradients of these are those of the records' own losses.
                parts = [_wide(made) * weight for (made, _), weight in zip(arrived, weights, strict=True)]
                losses = torch.stack([part.reshape(records, -1).sum(1) for part in parts]).sum(0)
            # Autograd will put back what follows operations now; `_settle` ends it later.
            with _disable_current_modes():
                complete = self.gradients.backward(losses)
        if complete and self._scaler is not None:
            for parameter in self.gradients.parameters:
                if parameter.grad is not None:
                    parameter.grad.mul_(self._scaler.get_scale())

    def _settle(self) -> None:
        """End what followed operations for the checks of a batch that is done."""
        if self._half is not None and self._half.done:
            self._leave_half()
        self.gradients.settle()


def _private_step(here: Any, own: Any) -> Any:
    taken = 0

    def step(optimizer: torch.optim.Optimizer, closure: Any = None) -> Any:
        nonlocal taken
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        training = here()
        if training is None:
            raise NoiseproofError("the private training of this optimizer is gone; keep what `make_private` returned.")
        training._settle()
        training.stepped = training.gradients.steps > taken
        if training.stepped:
            taken = training.gradients.steps
            own()
        elif not training.gradients.in_step:
            raise NoiseproofError("there is no new private gradient to step with; call `loss.backward()` first.")
        return loss

    # A scheduler that was made before looks for what it has left there.
    return functools.update_wrapper(step, own)


def _detached(leaf: Any) -> Any:
    return leaf.detach() if differentiable(leaf) else leaf


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _shares(gradients: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """What each of a network's own losses is multiplied by: its share of the loop's loss, the same for every record.

    Whatever else the loop divides its loss by (labels in the batch, batches of a step) is left out: it is not the record's.
    """
    found = [float(gradient[0]) for gradient in gradients]
    for gradient, share in zip(gradients, found, strict=True):
        if not torch.allclose(gradient, torch.full_like(gradient, share)):
            raise UnsupportedError("the loop weighs losses that the network has averaged; let it weigh none of them.")
    total = math.fsum(found) or 1.0
    return [torch.full_like(gradient, share / total) for gradient, share in zip(gradients, found, strict=True)]
