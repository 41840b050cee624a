"""The benchmark of generators measures a private step that really is one."""

from __future__ import annotations

import torch

from bench import generators


def test_rows_are_ratios_of_what_was_measured():
    found = generators.rows(repeats=1)
    assert [row["what"].split()[0] for row in found] == ["dense", "conv"]
    assert all(row["ratio"] == row["ours"] / row["theirs"] > 0 for row in found)


def test_the_private_step_moves_weights_by_noise_that_the_plain_one_has_not():
    setting = generators.Setting("dense")
    before = [parameter.clone() for parameter in setting.discriminator.parameters()]
    generators.private(setting)()
    generators.plain(setting)()
    # Contenders work on copies: the setting stays the same for both.
    assert all(torch.equal(old, new) for old, new in zip(before, setting.discriminator.parameters(), strict=True))
