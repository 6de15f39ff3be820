"""Recurrent layers: one kernel for a layer and direction, a launch of it for each step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from pappus import package
from pappus.package import recurrent
from pappus.package.plan import Repeat, launches
from test_models import same

T = torch.export.Dim("T", min=2, max=1000)


class Layers(nn.Module):
    """All results of recurrent layers, in one row."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: torch.Tensor, *states: torch.Tensor) -> torch.Tensor:
        given = states if len(states) < 2 else [states]
        out, last = self.layers(x, *given)
        return torch.cat([each.flatten() for each in (out, *(last if isinstance(last, tuple) else [last]))])


def steps(built: package.Package) -> int:
    """How many kernels are those of a layer's step."""
    return sum(recurrent.is_step(name) for name in built.plan.kernels)


@pytest.mark.parametrize(
    ("layers", "shape"),
    [
        (nn.RNN(6, 20), (7, 3, 6)),
        (nn.RNN(6, 20, nonlinearity="relu", bias=False), (7, 3, 6)),
        (nn.GRU(6, 20, num_layers=2), (7, 3, 6)),
        (nn.GRU(6, 17, bidirectional=True, bias=False), (4, 18, 6)),
        (nn.LSTM(6, 20), (7, 3, 6)),
        (nn.LSTM(6, 70, num_layers=2, bidirectional=True, batch_first=True), (3, 5, 6)),
        # What is 1 is a constant of the kernel's.
        (nn.LSTM(6, 20), (1, 1, 6)),
        (nn.GRU(6, 20), (4, 6)),
        # More than a block reads at once, and more rows than few.
        (nn.GRU(6, 300), (2, 9, 6)),
        (nn.LSTM(6, 70), (2, 70, 6)),
        (nn.RNN(6, 20), (3, 70, 6)),
    ],
    ids=["rnn", "relu", "gru", "gru both ways", "lstm", "lstm both ways", "one step", "no batch", "wide", "many", "many rnn"],
)
def test_layers(layers: nn.Module, shape: tuple[int, ...]) -> None:
    model, x = Layers(layers).eval(), torch.randn(shape)
    built = package.torch(model, (x,))
    same(built, model, x)
    # A kernel for each layer and direction at most, however many steps there are.
    assert 1 <= steps(built) <= layers.num_layers * (1 + layers.bidirectional)


def test_the_state_before_is_an_input() -> None:
    model, states = Layers(nn.LSTM(6, 20)).eval(), (torch.randn(1, 3, 20), torch.randn(1, 3, 20))
    inputs = (torch.randn(4, 3, 6), *states)
    same(package.torch(model, inputs), model, *inputs)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_half_precision_adds_up_in_float32(kind: type[nn.Module], dtype: torch.dtype) -> None:
    model, x = Layers(kind(6, 100)).eval().to(dtype), torch.randn(5, 3, 6, dtype=dtype)
    # Beside float32 with the same numbers, no more than what PyTorch's own are off.
    same(package.torch(model, (x,)), model, x, tolerance=2 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("targets", [["gfx942"], ["sm_80", "sm_100"]])
def test_other_targets(targets: list[str]) -> None:
    model, x = Layers(nn.LSTM(6, 20)).eval(), torch.randn(3, 3, 6)
    same(package.torch(model, (x,), targets=targets), model, x)


@pytest.mark.parametrize(
    "layers",
    [nn.RNN(6, 20), nn.GRU(6, 20), nn.LSTM(6, 20, num_layers=2, bidirectional=True)],
    ids=["rnn", "gru", "lstm"],
)
def test_any_number_of_steps(layers: nn.Module) -> None:
    class Output(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = layers

        def forward(self, x: torch.Tensor) -> Any:
            return self.layers(x)[0]

    model = Output().eval()
    built = package.torch(model, (torch.randn(7, 3, 6),), dynamic_shapes=({0: T},))
    for count in (2, 7, 11):
        same(built, model, torch.randn(count, 3, 6))
    repeated = [step for step in built.plan.steps if isinstance(step, Repeat)]
    assert len(repeated) == layers.num_layers * (1 + layers.bidirectional)
    assert all(recurrent.is_step(launch.kernel) for launch in launches(repeated))


def test_any_number_of_rows() -> None:
    model = Layers(nn.LSTM(6, 20)).eval()
    rows = torch.export.Dim("rows", min=2, max=100)
    built = package.torch(model, (torch.randn(2, 3, 6),), dynamic_shapes=({1: rows},))
    for count in (2, 20):
        same(built, model, torch.randn(2, count, 6))


def test_many_steps_are_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recurrent, "_MOST_WRITTEN", 4)
    for count, steps in (4, 4), (5, 1):
        model, x = Layers(nn.GRU(6, 20)).eval(), torch.randn(count, 3, 6)
        built = package.torch(model, (x,))
        same(built, model, x)
        assert sum(recurrent.is_step(launch.kernel) for launch in launches(built.plan.steps)) == steps


def test_an_exported_program_has_them_too() -> None:
    model, x = Layers(nn.GRU(6, 20)).eval(), torch.randn(4, 3, 6)
    built = package.torch(torch.export.export(model, (x,)), (x,))
    same(built, model, x)
    assert steps(built) == 1


def test_layers_whose_state_is_projected_are_written_out() -> None:
    model, x = Layers(nn.LSTM(6, 20, proj_size=7)).eval(), torch.randn(4, 3, 6)
    built = package.torch(model, (x,))
    same(built, model, x)
    assert steps(built) == 0
