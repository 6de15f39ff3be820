"""What has no form in a function is refused with its name and the line of the model, and nothing is written."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

from pappus import package
from pappus.package import PackageError, Unsupported


class Inverts(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        doubled = x.T @ x * 2
        return torch.linalg.inv(doubled)


class Branches(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))


class Draws(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.multinomial(x.abs(), 2)


def line_of(model: type[nn.Module], text: str) -> int:
    lines, first = inspect.getsourcelines(model)
    return first + next(at for at, line in enumerate(lines) if text in line)


@pytest.mark.parametrize(
    ("model", "operator", "line"),
    [(Inverts, "linalg_inv", "torch.linalg.inv"), (Draws, "multinomial", "torch.multinomial")],
)
def test_an_operator_without_a_kernel(model: type[nn.Module], operator: str, line: str) -> None:
    with pytest.raises(Unsupported) as refused:
        package.torch(model().eval(), (torch.randn(4, 16),))
    assert operator in refused.value.what
    assert "write it in other operators" in refused.value.why
    assert refused.value.where is not None
    assert f"test_refusals.py:{line_of(model, line)}: " in refused.value.where


@torch.library.custom_op("brought::doubles", mutates_args=())
def doubles(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@doubles.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


class CallsAnother(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return doubles(x)


def test_an_operator_of_another_library() -> None:
    with pytest.raises(
        Unsupported, match=r"brought\.doubles\.default \(at .*: return doubles\(x\)\): brought brings it.*triton_op"
    ):
        package.torch(CallsAnother().eval(), (torch.randn(4, 16),))


class Adds(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * 2


class Loops(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        count = torch.zeros((), dtype=torch.int64)
        found = while_loop(lambda count, x: x.sum() < 9, lambda count, x: (count + 1, x + 1), (count, x))
        return found[1]


class Scans(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return scan(lambda carry, row: (carry + row, carry * 1.0), x[0], x)[1]


class Asks(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        while x.sum() > 0:
            x = x - 1
        return x


class AsksHowMany(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = x[x > 0]
        if found.numel() > 4:
            return found.sum()
        return x.sum()


class Finds(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nonzero(x > 0)


class Counts(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.bincount(x.reshape(-1).long(), minlength=9)[:9]


@pytest.mark.parametrize(
    ("model", "what", "line", "why"),
    [
        (Adds, "aten.add_.Tensor, which changes input 'x'", "x.add_", "changes nothing but outputs and state"),
        (Branches, "torch.cond", "torch.cond", "do not depend on data"),
        (Loops, "while_loop", "found = while_loop", "do not depend on data"),
        (Scans, "scan", "return scan", "do not depend on data"),
        (Asks, "a branch or loop on what was computed by aten.item.default", "while x.sum()", "torch.where takes one"),
        (AsksHowMany, "a branch or loop on what was computed by aten.index.Tensor", "if found.numel()", "keep all places"),
        (Finds, "nonzero", "torch.nonzero", ""),
        (Counts, "bincount", "torch.bincount", "torch.zeros(n, dtype=torch.int32).scatter_add(0, x, "),
    ],
)
def test_changed_inputs_and_control_flow_are_refused_by_name_and_line(
    model: type[nn.Module], what: str, line: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Unsupported) as refused:
        package.torch(model().eval(), (torch.randn(4, 4),)).save("model.pappus")
    assert what in refused.value.what
    assert why in refused.value.why
    assert refused.value.where is not None
    assert f"test_refusals.py:{line_of(model, line)}: " in refused.value.where
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_knows_it_has_no_gpu_can_package() -> None:
    from torch.utils._triton import has_triton

    before = has_triton()
    package.torch(nn.Linear(16, 16).eval(), (torch.randn(16, 16),))
    assert has_triton() == before == torch.cuda.is_available()


def test_what_cannot_be_exported_is_told() -> None:
    class Fails(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.view(3, 3)

    with pytest.raises(PackageError, match=r"torch\.export cannot .* \(at .*test_refusals\.py:\d+: return x\.view"):
        package.torch(Fails().eval(), (torch.randn(4),))
    with pytest.raises(PackageError, match="training mode"):
        package.torch(nn.Linear(2, 2), (torch.randn(4, 2),))
    with pytest.raises(PackageError, match=r"is no torch\.nn\.Module"):
        package.torch(len, (torch.randn(4, 2),))


def test_pytorch_is_as_it_was_afterwards() -> None:
    before = (torch.cuda.is_available(), torch.cuda.device_count(), torch.cuda.get_device_properties)
    package.torch(nn.Linear(16, 16).eval(), (torch.randn(16, 16),))
    with pytest.raises(Unsupported):
        package.torch(Inverts().eval(), (torch.randn(4, 16),))
    assert before == (torch.cuda.is_available(), torch.cuda.device_count(), torch.cuda.get_device_properties)


def test_where_no_line_is_the_users_the_module_is_told() -> None:
    model = nn.Sequential(nn.ReLU(), nn.ConvTranspose2d(2, 2, 2, dilation=2)).double().eval()
    with pytest.raises(Unsupported) as refused:
        package.torch(model, (torch.randn(1, 2, 3, 3, dtype=torch.float64),))
    assert refused.value.where == "1, a ConvTranspose2d"
    assert refused.value.what == "aten.convolution.default (2 dimensions, transposed, dilation 2)"


class DynamicCache:
    """Called as that of Hugging Face."""


class Remembers(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, DynamicCache]:
        return x * 2, DynamicCache()


class Returns(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
        return x * 2, None


def test_calls_that_are_wrong_read_well() -> None:
    x = torch.randn(4, 4)
    with pytest.raises(Unsupported, match=r"a DynamicCache as input or output: .*use_cache=False"):
        package.torch(Remembers().eval(), (x,))
    with pytest.raises(Unsupported, match=r"output 1 of the model, which is None: .*leave it out"):
        package.torch(Returns().eval(), (x,))
    with pytest.raises(PackageError, match=r"is a Tensor, expected a tuple of the model's arguments: \(example,\)"):
        package.torch(nn.Linear(4, 4).eval(), x)
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout()).eval()
    model[1].train()
    with pytest.raises(PackageError, match="1, a Dropout, is in training mode"):
        package.torch(model, (x,))


def test_a_failure_of_pytorchs_is_an_error_of_ours_with_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import lowering

    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("Found no NVIDIA driver")

    monkeypatch.setitem(lowering.lowerings, torch.ops.aten.erf.default, fails)

    class Asks(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.erf(x)

    with pytest.raises(PackageError, match=r"cannot lower aten\.erf\.default \(at .*test_refusals\.py:\d+: return torch\.erf"):
        package.torch(Asks().eval(), (torch.randn(4),))
