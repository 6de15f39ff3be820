"""Quantised weights: those of torchao are taken apart, and numbers of four bits lie two to a byte."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch import nn

from pappus import package
from pappus.package import quantized
from test_models import launches, same

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torchao.quantization as ao
    from torchao.quantization.quantize_.workflows.int4.int4_tensor import Int4Tensor

# What PyTorch rounds between its operators stays as it was computed in one kernel.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}


def perceptron(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 32)).eval().to(dtype)


def quantised(config: Any, dtype: torch.dtype = torch.float32) -> nn.Sequential:
    model = perceptron(dtype)
    ao.quantize_(model, config)
    return model


def kernels(built: package.Package) -> list[str]:
    return [launch[0] for launch in launches(built)]


@pytest.mark.parametrize("rows", [1, 40])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_weights_of_eight_bits(dtype: torch.dtype, rows: int) -> None:
    model, x = quantised(ao.Int8WeightOnlyConfig(), dtype), torch.randn(rows, 64, dtype=dtype)
    built = package.torch(model, (x,))
    same(built, model, x, tolerance=TOLERANCE[dtype])
    kept = built.plan.weights
    assert list(kept) == ["0.bias", "0.weight.qdata", "0.weight.scale", "2.bias", "2.weight.qdata", "2.weight.scale"]
    assert kept["0.weight.qdata"].dtype == numpy.int8
    # Nobody writes the weights out in numbers of more bits.
    assert len(kernels(built)) == 2


@pytest.mark.parametrize("rows", [1, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("granularity", [ao.PerGroup(32), ao.PerAxis(0)], ids=["groups", "rows"])
def test_weights_of_four_bits(granularity: Any, dtype: torch.dtype, rows: int) -> None:
    config = ao.IntxWeightOnlyConfig(torch.int4, granularity=granularity)
    model, x = quantised(config, dtype), torch.randn(rows, 64, dtype=dtype)
    built = package.torch(model, (x,))
    same(built, model, x, tolerance=TOLERANCE[dtype])
    assert built.plan.weights["0.weight.qdata"].shape == (96, 32)
    assert all("poi" not in name for name in kernels(built))


def test_weights_of_three_bits_an_odd_number_of_which_are_kept_as_they_are() -> None:
    model = nn.Linear(33, 8).eval()
    ao.quantize_(model, ao.IntxWeightOnlyConfig(torch.int3, granularity=ao.PerAxis(0)))
    x = torch.randn(4, 33)
    built = package.torch(model, (x,))
    same(built, model, x)
    assert built.plan.weights["weight.qdata"].shape == (8, 33)


# The largest number of a row becomes 127.5 of them, which is rounded up or down as the last bit of a quotient is.
@pytest.mark.parametrize(
    "config",
    [
        ao.Int8DynamicActivationInt8WeightConfig(),
        ao.Int8DynamicActivationIntxWeightConfig(torch.int4, ao.PerGroup(32)),
    ],
    ids=["eight bits", "four bits"],
)
def test_inputs_that_are_quantised_while_the_model_runs(config: Any) -> None:
    model, x = quantised(config), torch.randn(20, 64)
    same(package.torch(model, (x,)), model, x, tolerance=1 / 127)


def test_products_of_whole_numbers_stay_such() -> None:
    built = package.torch(quantised(ao.Int8DynamicActivationInt8WeightConfig()), (torch.randn(20, 64),))
    assert sum("int_mm" in name for name in kernels(built)) == 2


def test_a_free_number_of_rows_and_an_exported_program() -> None:
    model, x = quantised(ao.IntxWeightOnlyConfig(torch.int4, granularity=ao.PerGroup(32))), torch.randn(5, 64)
    rows = {0: torch.export.Dim("rows", min=2, max=64)}
    program = torch.export.export(model, (x,), dynamic_shapes=(rows,))
    for built in (package.torch(model, (x,), dynamic_shapes=(rows,)), package.torch(program)):
        same(built, model, torch.randn(9, 64))


def test_weights_that_torchao_multiplies_on_gpus_alone() -> None:
    model, plain = perceptron(torch.bfloat16), perceptron(torch.bfloat16)
    for layer, whole in ((model[0], plain[0]), (model[2], plain[2])):
        rows, depth = layer.weight.shape
        numbers = torch.randint(-8, 8, (rows, depth), dtype=torch.int8)
        scale, zero = (torch.rand(depth // 32, rows).to(torch.bfloat16) / 64 for _ in range(2))
        groups = numbers.view(rows, -1, 32) * scale.T[..., None] + zero.T[..., None]
        whole.weight = nn.Parameter(groups.view(rows, depth), requires_grad=False)
        apart = Int4Tensor(quantized.packed(numbers), scale, zero, [1, 32], layer.weight.shape)
        layer.weight = nn.Parameter(apart, requires_grad=False)
    x = torch.randn(20, 64, dtype=torch.bfloat16)
    built = package.torch(model, (x,))
    same(built, plain, x, tolerance=TOLERANCE[torch.bfloat16])
    assert len(kernels(built)) == 2


@pytest.mark.parametrize("shape", [(2,), (3, 8)])
def test_numbers_of_four_bits_two_to_a_byte(shape: tuple[int, ...]) -> None:
    numbers = torch.randint(-8, 8, shape, dtype=torch.int8)
    assert torch.equal(quantized.unpacked(quantized.packed(numbers)), numbers)
    assert quantized.packed(torch.tensor([-8, 7], dtype=torch.int8)).tolist() == [0x78]


def test_the_model_stays_as_it_was() -> None:
    model, x = quantised(ao.IntxWeightOnlyConfig(torch.int4, granularity=ao.PerGroup(32))), torch.randn(5, 64)
    before: Callable[[], Any] = lambda: (type(model[0].weight), list(model.state_dict()), model(x))  # noqa: E731
    kind, names, result = before()
    package.torch(model, (x,))
    assert (kind, names) == before()[:2]
    assert torch.equal(result, before()[2])


@pytest.mark.parametrize("rows", [1, 40])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("kept", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_floats_of_eight_bits(kept: torch.dtype, dtype: torch.dtype, rows: int) -> None:
    model, x = quantised(ao.Float8WeightOnlyConfig(weight_dtype=kept), dtype), torch.randn(rows, 64, dtype=dtype)
    built = package.torch(model, (x,))
    same(built, model, x, tolerance=TOLERANCE[dtype])
    assert built.blueprint["types"]["0.weight.qdata"]["dtype"] == str(kept).replace("torch.float8_", "f8")
    assert all("poi" not in name for name in kernels(built))


def test_attention_between_quantised_products() -> None:
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(32, 2, 64, dropout=0, batch_first=True).eval()
    ao.quantize_(model, ao.Int8WeightOnlyConfig())
    x = torch.randn(2, 5, 32)
    same(package.torch(model, (x,)), model, x)


class Beside(nn.Module):
    """A quantised layer beside weights that are computed otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(32, 32)
        self.row = nn.Parameter(torch.randn(32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + nn.functional.linear(x, self.row * 2)[..., None]


def test_other_computed_weights_stay_as_they_are() -> None:
    model, x = Beside().eval(), torch.randn(4, 32)
    ao.quantize_(model, ao.Int8WeightOnlyConfig())
    same(package.torch(model, (x,)), model, x)


def test_what_is_not_quantised_is_computed_once() -> None:
    class Sums(nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            return nn.functional.gelu(a[:, None] + b[None, :]) @ w

    inputs = [torch.randn(shape, dtype=torch.float16) for shape in [(256,), (64,), (64, 512)]]
    # In the product, each column of tiles would compute it anew.
    assert len(kernels(package.torch(Sums().eval(), tuple(inputs)))) == 2


def test_older_gpus_convert_no_e4m3() -> None:
    model, x = quantised(ao.Float8WeightOnlyConfig()), torch.randn(4, 64)
    with pytest.raises(package.Unsupported, match=r"numbers of torch.float8_e4m3fn.*sm_80 does not convert them"):
        package.torch(model, (x,), targets=["sm_80", "sm_90"])
    # Of the other type they convert.
    package.torch(Converted(torch.float8_e5m2).eval(), (x,), targets=["sm_80"])


class Converted(nn.Module):
    def __init__(self, to: torch.dtype) -> None:
        super().__init__()
        self.to_type = to

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.to(self.to_type).float()


@pytest.mark.parametrize("kept", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_conversions_are_pytorchs(kept: torch.dtype) -> None:
    codes = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(kept)
    odd = torch.tensor([31.208, -7.862, 2**-10 * 1.01, -124.4, 0.1, -0.0, float("nan")])
    for model, x in ((Converted(torch.float32), codes), (Converted(kept), odd)):
        found = torch.as_tensor(package.torch(model.eval(), (x,)).interpret(x=x)["output"])
        assert torch.equal(found.nan_to_num(12345), model(x).nan_to_num(12345)), x[found != model(x)]


class Scaled(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x.float() * 2).to(x.dtype)


@pytest.mark.parametrize("kept", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_floats_of_eight_bits_come_and_go(kept: torch.dtype) -> None:
    x = torch.randn(4, 33).to(kept)
    built = package.torch(Scaled().eval(), (x,))
    found = torch.as_tensor(built.interpret(x=x)["output"])
    assert found.dtype == kept
    assert torch.equal(found.view(torch.uint8), Scaled()(x).view(torch.uint8))


class EightBits(nn.Module):
    """A product whose factors are floats of eight bits, as torchao writes it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randn(32, 64).to(torch.float8_e4m3fn))
        self.register_buffer("scale", torch.tensor(0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch._scaled_mm(x, self.weight.t(), self.scale, self.scale, out_dtype=torch.bfloat16)


def test_products_of_floats_of_eight_bits() -> None:
    model, x = EightBits().eval(), torch.randn(16, 64).to(torch.float8_e4m3fn)
    found = torch.as_tensor(package.torch(model, (x,)).interpret(x=x)["output"]).float()
    wanted = x.float() @ model.weight.float().t() / 4
    assert float((found - wanted).abs().max()) <= 1e-2 * float(wanted.abs().max())
