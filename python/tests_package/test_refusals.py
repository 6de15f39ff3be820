"""What has no form in a function is refused with its name and the line of the model, and nothing is written."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import nn

from pappus import package
from pappus.package import PackageError, Unsupported


class Sorts(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        doubled = x * 2
        return torch.topk(doubled, 3).values


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        return x + self.calls


class Branches(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))


class Transforms(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.fft.rfft(x).abs()


def line_of(model: type[nn.Module], text: str) -> int:
    lines, first = inspect.getsourcelines(model)
    return first + next(at for at, line in enumerate(lines) if text in line)


@pytest.mark.parametrize(
    ("model", "operator", "line"),
    [(Sorts, "topk", "torch.topk"), (Transforms, "fft", "torch.fft")],
)
def test_an_operator_without_a_kernel(model: type[nn.Module], operator: str, line: str) -> None:
    with pytest.raises(Unsupported) as refused:
        package.torch(model().eval(), (torch.randn(4, 16),))
    assert operator in refused.value.what
    assert refused.value.where is not None
    assert f"test_refusals.py:{line_of(model, line)}: " in refused.value.where


def test_state_is_refused() -> None:
    with pytest.raises(Unsupported, match="changes nothing but its outputs"):
        package.torch(Counts().eval(), (torch.randn(4),))


def test_branches_are_refused() -> None:
    with pytest.raises(Unsupported, match=r"torch\.cond"):
        package.torch(Branches().eval(), (torch.randn(4),))


def test_what_cannot_be_exported_is_told() -> None:
    class Reads(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if x.sum().item() > 0 else -x

    with pytest.raises(PackageError, match=r"torch\.export cannot"):
        package.torch(Reads().eval(), (torch.randn(4),))
    with pytest.raises(PackageError, match="training mode"):
        package.torch(nn.Linear(2, 2), (torch.randn(4, 2),))
    with pytest.raises(PackageError, match=r"is no torch\.nn\.Module"):
        package.torch(len, (torch.randn(4, 2),))


def test_pytorch_is_as_it_was_afterwards() -> None:
    before = (torch.cuda.is_available(), torch.cuda.device_count(), torch.cuda.get_device_properties)
    package.torch(nn.Linear(16, 16).eval(), (torch.randn(16, 16),))
    with pytest.raises(Unsupported):
        package.torch(Sorts().eval(), (torch.randn(4, 16),))
    assert before == (torch.cuda.is_available(), torch.cuda.device_count(), torch.cuda.get_device_properties)
