"""A batch's gradients: groups, weights, and records that must be left out."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from noiseproof.errors import SettingError
from noiseproof.gradients.engine import PerRecordGradients, RecordGradients, room


@pytest.fixture
def module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(16, 5), nn.LayerNorm(5), nn.Tanh(), nn.Linear(5, 3)
    ).double()


@pytest.fixture
def batch(module: nn.Module) -> RecordGradients:
    given = torch.randn(6, 1, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    with PerRecordGradients(module) as engine:
        return engine.backward(module(given).sum(1))


def test_layers_group_the_tensors_of_a_module(batch):
    by_tensor, by_layer = batch.squared_norms("tensor"), batch.squared_norms("layer")
    assert by_tensor.shape == (6, 8)
    torch.testing.assert_close(by_layer, by_tensor.view(6, 4, 2).sum(2))
    torch.testing.assert_close(batch.squared_norms(), by_tensor.sum(1))


@pytest.mark.parametrize(("by", "groups"), [("tensor", 8), ("layer", 4)])
def test_weights_by_group(batch, by, groups):
    weights = torch.rand(6, groups, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    explicit = batch.materialise()
    for place, total in enumerate(batch.weighted_sum(weights, by=by)):
        column = weights[:, place if by == "tensor" else place // 2]
        torch.testing.assert_close(total, torch.tensordot(column, explicit[place], dims=1))


def test_weights_of_another_shape_or_group_are_refused(batch):
    with pytest.raises(SettingError, match=r"\(6,\)"):
        batch.weighted_sum(torch.ones(5))
    with pytest.raises(SettingError, match=r"\(6, 4\)"):
        batch.weighted_sum(torch.ones(6), by="layer")
    with pytest.raises(SettingError, match="not one of"):
        batch.weighted_sum(torch.ones(6), by="channel")
    with pytest.raises(SettingError, match="not one of"):
        batch.squared_norms("channel")


def test_weights_may_be_negative_and_of_another_type(batch):
    weights = torch.tensor([-1.0, 2.0, 0.5, -3.0, 1.0, 4.0])
    for total, rows in zip(batch.weighted_sum(weights), batch.materialise(), strict=True):
        torch.testing.assert_close(total, torch.tensordot(weights.double(), rows, dims=1))


LAYERS = {
    "linear": (lambda: nn.Linear(6, 3), (6,)),
    "linear at positions": (lambda: nn.Linear(6, 3), (4, 6)),
    "convolution": (lambda: nn.Conv1d(2, 3, 2), (2, 5)),
    "layer norm": (lambda: nn.LayerNorm(6), (6,)),
    "attention": (lambda: _Attention(), (4, 6)),
    "recurrent": (lambda: _Recurrent(), (4, 6)),
    "embedding": (lambda: _Table(), (4,)),
}


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.MultiheadAttention(6, 2, batch_first=True)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return self.layer(given, given.flip(1), given)[0]


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.GRU(6, 3, batch_first=True)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return self.layer(given)[0]


class _Table(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Embedding(5, 3)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return self.layer((given.nan_to_num(0.0, 1.0).abs() * 2).long().clamp(max=4)) * given.unsqueeze(-1)


@pytest.mark.parametrize("kind", sorted(LAYERS))
@pytest.mark.parametrize("norms_first", [True, False])
def test_a_record_that_is_not_finite_can_be_left_out_by_weight_zero(kind, norms_first):
    torch.manual_seed(0)
    build, shape = LAYERS[kind]
    module = build().double()
    given = torch.randn(5, *shape, dtype=torch.float64)
    weights = torch.tensor([0.5, 0.0, 1.0, 0.0, 2.0], dtype=torch.float64)
    with PerRecordGradients(module, check=False) as engine:
        expected = engine.backward(module(given[::2]).sin().flatten(1).sum(1)).weighted_sum(weights[::2])
        given[1], given[3] = torch.inf, torch.nan
        scale = torch.tensor([1.0, torch.nan, 1.0, torch.inf, 1.0], dtype=torch.float64)
        batch = engine.backward((module(given).sin().flatten(1).sum(1)) * scale)
        if norms_first:
            assert batch.squared_norms()[::2].isfinite().all()
        for found, wanted in zip(batch.weighted_sum(weights), expected, strict=True):
            torch.testing.assert_close(found, wanted)
        assert all(not total.any() for total in batch.weighted_sum(torch.zeros_like(weights)))
        assert not batch.weighted_vector(torch.zeros_like(weights)).any()


def test_the_gram_matrix_has_the_norms_on_its_diagonal(batch):
    torch.testing.assert_close(batch.gram().diagonal(), batch.squared_norms())
    torch.testing.assert_close(batch.gram(), batch.gram().T)


def test_inner_products_with_a_weighted_sum_are_the_gram_matrix_applied(batch):
    weights = torch.linspace(-1, 1, 6, dtype=torch.float64)
    torch.testing.assert_close(batch.inner(batch.weighted_sum(weights)), batch.gram() @ weights)


def test_layers_of_a_batch_share_the_room_for_written_out_gradients(monkeypatch):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv1d(1, 2, 3), nn.Conv1d(2, 2, 3), nn.Conv1d(2, 2, 3))
    given = torch.randn(4, 1, 30)
    wanted: list[list[torch.Tensor]] = []
    kept: list[list[bool]] = []
    # The gradients of the later two take 4 x 12 x 4 = 192 bytes each, those of the first 96.
    for size in (0, 200, 300, 10**6):
        monkeypatch.setattr(room, "KEPT_BYTES", size)
        with PerRecordGradients(module) as engine:
            batch = engine.backward(module(given).sin().flatten(1).sum(1))
        weights = batch.squared_norms().rsqrt()
        wanted.append(batch.weighted_sum(weights))
        kept.append([part._kept is not None for part in batch._contributions[::2]])
    for other in wanted[1:]:
        torch.testing.assert_close(other, wanted[0])
    assert [sum(each) for each in kept] == [0, 1, 2, 3]
