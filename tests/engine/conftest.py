"""What the engine's tests share: the comparison with a loop of single-record autograd."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import nn

from noiseproof.engine import PerRecordGradients, RecordGradients, clip_weights
from noiseproof.engine.persons import Owners


def loop_of_autograd(
    module: nn.Module, inputs: Sequence[torch.Tensor], loss: Callable[[torch.Tensor], torch.Tensor]
) -> list[torch.Tensor]:
    """Every record's gradient, (B, *shape) a trainable parameter, by running the module on one record at a time."""
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    rows = []
    for record in range(len(inputs[0])):
        output = module(*(tensor[record : record + 1] for tensor in inputs))
        rows.append(torch.autograd.grad(loss(output).sum(), parameters, allow_unused=True))
    return [
        torch.stack([torch.zeros_like(parameter) if row[place] is None else row[place] for row in rows])
        for place, parameter in enumerate(parameters)
    ]


def smooth_loss(output: torch.Tensor) -> torch.Tensor:
    """One loss a record (first dimension), with errors that differ everywhere."""
    flat = output.flatten(1)
    return (flat.sin() * torch.linspace(0.5, 1.5, flat.shape[1], dtype=flat.dtype)).sum(1)


def assert_same(batch: RecordGradients, expected: list[torch.Tensor], tolerance: float) -> None:
    """Everything that `batch` can be asked for agrees with the explicit gradients."""
    records = len(expected[0])
    scale = max([1e-30, *(float(gradient.abs().max()) for gradient in expected)])
    generator = torch.Generator().manual_seed(5)
    weights = torch.rand(records, generator=generator, dtype=expected[0].dtype) + 0.1
    vectors = [torch.randn(gradient.shape[1:], generator=generator, dtype=gradient.dtype) for gradient in expected]

    def close(found: torch.Tensor, wanted: torch.Tensor, size: float) -> None:
        torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance * size)

    def at_least(found: torch.Tensor, wanted: torch.Tensor, size: float) -> None:
        # A norm may be stated longer, by what rounding could hide, never shorter.
        close(torch.minimum(found, wanted), wanted, size)
        torch.testing.assert_close(found, wanted, rtol=max(tolerance, slack), atol=max(tolerance, slack) * size)

    slack = 2e-2 if expected[0].dtype == torch.float32 else 0.0
    rows = torch.cat([gradient.reshape(records, -1) for gradient in expected], dim=1)
    flat = torch.cat([vector.flatten() for vector in vectors])
    width = rows.shape[1]

    def check() -> None:
        at_least(
            batch.squared_norms("tensor"),
            torch.stack([gradient.reshape(records, -1).square().sum(1) for gradient in expected], dim=1),
            scale**2,
        )
        at_least(batch.squared_norms(), rows.square().sum(1), scale**2 * width**0.5)
        for found, gradient in zip(batch.weighted_sum(weights), expected, strict=True):
            close(found, torch.tensordot(weights, gradient, dims=1), scale * records)
        close(batch.weighted_vector(weights), weights @ rows, scale * records)
        norms = rows.norm(dim=1)
        clip = float(norms.median())
        shares = (clip / norms.clamp_min(1e-30)).clamp(max=1)
        # Clipping stays a hair below the norm.
        torch.testing.assert_close(
            batch.clipped_vector(clip, 0.5), shares @ rows / 2, rtol=2e-5 + slack, atol=(2e-5 + slack) * scale * records
        )
        close(batch.inner(vectors), rows @ flat, scale * width**0.5)
        close(batch.gram(), rows @ rows.T, scale**2 * width**0.5)

    assert batch.records == records
    # Twice, because what the first round wrote out is used again in the second.
    check()
    check()
    for found, gradient in zip(batch.materialise(), expected, strict=True):
        close(found, gradient, scale)


def assert_bounded(batch: RecordGradients) -> None:
    """No record, or person, adds more than the clipping norm to a clipped sum."""
    squared = batch.squared_norms()
    clip = 0.3 * float(squared.median().sqrt()) + 1e-12
    weights = clip_weights(squared, clip)
    for one in torch.eye(len(weights), dtype=weights.dtype):
        assert float(batch.weighted_vector(weights * one).double().norm()) <= clip


@pytest.fixture(scope="session")
def agree() -> Callable[..., PerRecordGradients]:
    """`agree(module, *inputs)`: the engine's gradients are single-record autograd's, to 1e-5 or better; persons' too."""

    def check(
        module: nn.Module,
        *inputs: torch.Tensor,
        loss: Callable[[torch.Tensor], torch.Tensor] = smooth_loss,
        dtype: torch.dtype = torch.float64,
        **options: object,
    ) -> PerRecordGradients:
        module = module.to(dtype)
        inputs = tuple(tensor.to(dtype) if tensor.is_floating_point() else tensor for tensor in inputs)
        with PerRecordGradients(module, **options) as engine:
            output = module(*inputs)
            batch = engine.backward(loss(output))
        plain = module(*inputs)
        tolerance = 1e-9 if dtype == torch.float64 else 1e-5
        torch.testing.assert_close(output, plain, rtol=tolerance, atol=tolerance)
        assert all(parameter.grad is None for parameter in module.parameters())
        expected = loop_of_autograd(module, inputs, loss)
        records = len(expected[0])
        # A person's gradient is the sum of their records': one record, two, and all the others; or as many each.
        uneven = (torch.arange(records).clamp(max=3) + 1) // 2
        for owners in (uneven, torch.arange(records) // 2):
            persons = Owners(owners, int(owners.max()) + 1 if records else 0)
            summed = [row.new_zeros(persons.persons, *row.shape[1:]).index_add_(0, owners, row) for row in expected]
            if records:
                pooled = batch.by_person(persons)
                assert_same(pooled, summed, tolerance)
                assert_bounded(pooled)
        assert_same(batch, expected, tolerance)
        return engine

    return check
