"""Configurations of all templates: the table of measurements takes the one that it names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from bench_models import networks
from pappus.package import candidates, choose, deferred, lowering, points, targets, tune
from pappus.package.points import Table
from test_operators import Attends


class Products(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ x.transpose(1, 2)


MODELS = {
    "mm": (networks.MLP(), (64, 32), 2),
    "bmm": (Products(), (2, 32, 64), 1),
    "convolution": (nn.Conv2d(16, 32, 3), (1, 16, 8, 8), 1),
    "depthwise": (nn.Conv2d(32, 32, 3, groups=32), (1, 32, 8, 8), 1),
    "grouped": (nn.Conv2d(32, 32, 3, groups=4), (1, 32, 8, 8), 1),
    "flex_attention": (Attends(), (1, 1, 128, 16), 1),
}


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Of each operation, in Inductor's own words the configuration that was picked."""
    found: dict[str, str] = {}
    pick = candidates.Choices.pick

    def noted(self: Any, choices: list[Any]) -> list[Any]:
        picked = pick(self, choices)
        if any(isinstance(choice, deferred.Deferred) for choice in choices):
            (one,) = picked
            found[candidates.key_of(one, self.float32)] = one.description
        return picked

    monkeypatch.setattr(candidates.Choices, "pick", noted)
    return found


def table(choices: Mapping[str, str]) -> Table:
    return Table({"A GPU": {operation: {"choice": choice} for operation, choice in choices.items()}}, "A GPU")


@pytest.mark.filterwarnings("error:.*was the fastest")
@pytest.mark.parametrize("name", MODELS)
def test_each_candidate_is_taken_where_the_table_names_it(name: str, taken: dict[str, str]) -> None:
    model, shape, operations = MODELS[name]
    model, x = model.eval(), torch.randn(shape)
    _, _, choices = lowering.lower(model, (x,), candidates=3)
    assert len(choices.kept) == operations
    estimated = dict(taken)
    for number in range(3):
        named = {operation: list(plans)[number] for operation, plans in choices.kept.items()}
        assert (named == estimated) == (number == 0)
        taken.clear()
        lowering.lower(model, (x,), table=table(named))
        assert taken == named


def test_what_the_table_names_and_is_not_there_is_told(taken: dict[str, str]) -> None:
    model, x = networks.MLP().eval(), torch.randn(64, 32)
    lowering.lower(model, (x,))
    estimated = dict(taken)
    with pytest.warns(UserWarning, match="does not get 'tile 1', which was the fastest on A GPU"):
        lowering.lower(model, (x,), table=table(dict.fromkeys(estimated, "tile 1")))
    assert taken == estimated


def test_tables_that_come_with_pappus(taken: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(points, "_SHIPPED", tmp_path)
    model, x = networks.MLP().eval(), torch.randn(64, 32)
    _, _, choices = lowering.lower(model, (x,), candidates=3)
    estimated = dict(taken)
    second, third = ({operation: list(plans)[at] for operation, plans in choices.kept.items()} for at in (1, 2))
    (tmp_path / "sm_90.json").write_bytes(tune.written(table(second).rows))

    def chosen(**how: Any) -> dict[str, str]:
        taken.clear()
        lowering.lower(model, (x,), **how)
        return dict(taken)

    assert chosen() == second
    # One's own measurements count more; other architectures have none here.
    assert chosen(table=table(third)) == third
    assert chosen(targets=targets.parse("sm_80")) == estimated
    # What does not fit, or is there no longer, is not taken.
    (tmp_path / "sm_90.json").write_bytes(tune.written(table(dict.fromkeys(estimated, "tile 1")).rows))
    assert chosen() == estimated
    monkeypatch.setattr(choose, "estimate", lambda *_: float("inf"))
    (tmp_path / "sm_90.json").write_bytes(tune.written(table(second).rows))
    assert chosen() != second


def test_what_is_shipped_can_be_read() -> None:
    table = points.shipped(targets.parse("sm_90")[0])
    assert table.device is not None
    assert len(table.rows[table.device]) > 100
    assert points.shipped(targets.parse("gfx942")[0]).device is None
