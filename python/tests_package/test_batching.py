"""What a package says of calls that run side by side: that they may, where a model keeps the items of its batch apart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import bench_models.networks as models
from pappus import package

Check = Callable[[Path], str]
ANY = ({0: torch.export.Dim("n", min=1, max=64)},)


def packaged(model: nn.Module, *example: torch.Tensor, **more: Any) -> tuple[Any, list[str]]:
    """The blueprint of a model, and what was said meanwhile."""
    said: list[str] = []
    more = {"dynamic_shapes": ANY * len(example)} | more
    return package.torch(model.eval(), example, say=said.append, **more), said


@pytest.mark.parametrize(
    ("model", "example"),
    [
        (models.MLP(), torch.randn(4, 32)),
        (models.GPT(), torch.randint(0, 64, (4, 4))),
        (models.randomized(models.CNN()), torch.randn(4, 3, 12, 12)),
    ],
    ids=["dense", "transformer", "convolutional"],
)
def test_items_of_a_free_batch_run_together(model: nn.Module, example: torch.Tensor, tmp_path: Path, check: Check) -> None:
    built, _ = packaged(model, example)
    assert built.blueprint["batch"] == {"dimension": "n", "most": 64}
    check(built.save(tmp_path / "model.pappus"))
    # One item alone, and as the last one of several.
    names = built.blueprint["inputs"]
    several = built.interpret(**{names[0]: example})["output"]
    alone = built.interpret(**{names[0]: example[3:]})["output"]
    assert torch.allclose(torch.as_tensor(several[3:]), torch.as_tensor(alone), atol=1e-5)


class Mixes(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(0)


class Looks(nn.Module):
    """The first item is the same beside any others; the rest is not."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.cumsum(x, 0)


class Turns(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flip(0)


class Counts(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / x.shape[0]


@pytest.mark.parametrize("model", [Mixes(), Looks(), Turns(), Counts()])
def test_a_model_that_mixes_items_says_nothing_of_a_batch(model: nn.Module) -> None:
    built, said = packaged(model, torch.randn(4, 8))
    assert "batch" not in built.blueprint
    assert any("an item of an output depends on other items" in line for line in said)


class Kept(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        return x + self.seen


class Table(nn.Module):
    def forward(self, x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return x @ table


class Square(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ x.T


@pytest.mark.parametrize(
    ("model", "example", "shapes"),
    [
        (Kept(), (torch.randn(4, 8),), ANY),
        (Table(), (torch.randn(4, 8), torch.randn(8, 3)), (*ANY, None)),
        (Square(), (torch.randn(4, 8),), ANY),
        (models.MLP(), (torch.randn(4, 32),), None),
    ],
    ids=["state", "an input without it", "twice in the output", "nothing is free"],
)
def test_shapes_that_are_no_batch(model: nn.Module, example: tuple[torch.Tensor, ...], shapes: Any) -> None:
    built, said = packaged(model, *example, dynamic_shapes=shapes)
    assert "batch" not in built.blueprint
    assert not any("processor" in line for line in said)


def test_whoever_packages_may_keep_calls_by_themselves() -> None:
    built, said = packaged(models.MLP(), torch.randn(4, 32), batch=False)
    assert "batch" not in built.blueprint
    assert not any("processor" in line for line in said)


def test_an_example_of_equal_numbers_shows_nothing() -> None:
    built, said = packaged(models.GPT(), torch.zeros(4, 8, dtype=torch.int64))
    assert "batch" not in built.blueprint
    assert any("the same number everywhere" in line for line in said)


def test_an_exported_program_is_tried_as_well() -> None:
    x = torch.randn(4, 32)
    for model, expected in ((models.MLP(), True), (Mixes(), False)):
        program = torch.export.export(model.eval(), (x,), dynamic_shapes=ANY)
        assert ("batch" in package.torch(program).blueprint) == expected
