"""Models of PyTorch as packages: what the blueprint computes is what eager PyTorch computes, without a GPU."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from bench_models import networks as models
from fixture import program
from pappus import package
from pappus.package import Package, PackageError, Unsupported, compiling, precision

Check = Callable[[Path], str]


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def same(built: Package, model: nn.Module, *inputs: torch.Tensor, tolerance: float = 1e-5) -> None:
    """Compares with eager PyTorch, relative to the largest value."""
    with torch.no_grad():
        wanted = model(*inputs)
    names = built.blueprint["inputs"]
    found = torch.as_tensor(built.interpret(**dict(zip(names, inputs, strict=True)))["output"])
    assert found.shape == wanted.shape
    assert found.dtype == wanted.dtype
    assert float((found - wanted).abs().max()) <= tolerance * max(1.0, float(wanted.abs().max()))


def suffixes(built: Package) -> set[str]:
    """Of modules: for which targets there are some."""
    return {name.removeprefix("modules/").partition(".")[2] for name in built.modules}


def launches(built: Package) -> list[Any]:
    return [step["ExecKernel"] for step in built.blueprint["control_flow"] if "ExecKernel" in step]


def test_a_dense_network(tmp_path: Path, check: Check) -> None:
    model, x = models.MLP().eval(), torch.randn(8, 32)
    built = package.torch(model, (x,), targets=["sm_80", "sm_90"])
    same(built, model, x)
    assert built.blueprint["inputs"] == ["x"]
    assert built.blueprint["outputs"] == ["output"]
    assert set(built.document["weight_files"]) == set(model.state_dict())
    assert suffixes(built) == {"sm_80.cubin", "sm_90a.cubin"}
    for name in ("mlp.pappus", "mlp"):
        said = check(built.save(tmp_path / name))
        assert "a valid function" in said
        assert said.count("kernels and parameters fit") == len(built.modules)


def test_a_dense_network_of_any_batch() -> None:
    model = models.MLP().eval()
    batch = torch.export.Dim("batch", min=2, max=4096)
    built = package.torch(model, (torch.randn(8, 32),), dynamic_shapes={"x": {0: batch}})
    for rows in (2, 5, 33):
        same(built, model, torch.randn(rows, 32))


def test_a_convolutional_network(tmp_path: Path, check: Check) -> None:
    model, pixels = models.randomized(models.CNN()), torch.randn(2, 3, 12, 12)
    built = package.torch(model, (pixels,))
    same(built, model, pixels)
    check(built.save(tmp_path / "cnn.pappus"))


def test_a_transformer() -> None:
    model, tokens = models.GPT().eval(), torch.randint(0, 64, (2, 16))
    same(package.torch(model, (tokens,)), model, tokens)


class Scores(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x @ y.transpose(1, 2), -1)


class Pairs(nn.Module):
    def forward(self, y: torch.Tensor) -> torch.Tensor:
        return y.view(-1, 2, y.shape[1]).sum(1)


class Halves(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.cat([x.relu(), -x]) + y


def refused(folder: Path, **inputs: tuple[int, ...]) -> str:
    """What ``pappus function check`` says of a call with arrays of f32 of these shapes; nothing where it is one."""
    given = []
    for name, shape in inputs.items():
        file = folder / f"{name}.npy"
        np.save(file, np.zeros(shape, np.float32))
        given += ["--input", f"{name}={file}"]
    command = [program("pappus"), "function", "check", str(folder / "model.pappus"), *given]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode in (0, 3), done.stderr
    return done.stderr


def test_batch_and_length_are_free(tmp_path: Path) -> None:
    batch, tokens, others = (torch.export.Dim(n, min=2, max=m) for n, m in (("batch", 64), ("tokens", 40), ("others", 50)))
    model, x, y = Scores().eval(), torch.randn(4, 6, 32), torch.randn(4, 9, 32)
    shapes = {"y": {0: batch, 1: others}, "x": {0: batch, 1: tokens}}
    built = package.torch(model, (x, y), dynamic_shapes=shapes)
    declared = built.blueprint["types"]
    free = [{"Free": name} for name in ("batch", "tokens", "others")]
    assert declared["x"]["shape"] == [free[0], free[1], {"Absolute": 32}]
    assert declared["output"]["shape"] == free
    for a, b, c in ((4, 6, 9), (2, 17, 2), (5, 3, 33)):
        same(built, model, torch.randn(a, b, 32), torch.randn(a, c, 32))
    built.save(tmp_path / "model.pappus")
    assert refused(tmp_path, x=(64, 40, 32), y=(64, 50, 32)) == ""
    assert "batch_is_at_most_64" in refused(tmp_path, x=(65, 40, 32), y=(65, 50, 32))
    assert "others_is_at_most_50" in refused(tmp_path, x=(3, 2, 32), y=(3, 51, 32))
    assert "65" in refused(tmp_path, x=(64, 40, 32), y=(65, 50, 32))
    with pytest.raises(PackageError, match="tokens_is_at_most_40: a call with this many is refused"):
        built.interpret(x=torch.randn(2, 41, 32), y=torch.randn(2, 5, 32))


def test_a_transformer_of_any_batch_and_length() -> None:
    model, tokens = models.GPT().eval(), torch.randint(0, 64, (2, 8))
    free = {0: torch.export.Dim("batch", min=2, max=64), 1: torch.export.Dim("length", min=2, max=16)}
    built = package.torch(model, (tokens,), dynamic_shapes=(free,))
    for shape in ((3, 5), (2, 16)):
        same(built, model, torch.randint(0, 64, shape))


def test_a_dimension_that_is_a_multiple_of_a_free_one(tmp_path: Path) -> None:
    batch, width = torch.export.Dim("batch", min=2, max=32), torch.export.Dim("width", min=2, max=9)
    model, y = Pairs().eval(), torch.randn(8, 6)
    built = package.torch(model, (y,), dynamic_shapes={"y": {0: 2 * batch}})
    for rows in (8, 4, 14):
        same(built, model, torch.randn(rows, 6))
    built.save(tmp_path / "model.pappus")
    assert refused(tmp_path, y=(64, 6)) == ""
    assert "batch_is_at_most_32" in refused(tmp_path, y=(66, 6))
    assert "batch_is_at_least_2" in refused(tmp_path, y=(2, 6))
    assert "y" in refused(tmp_path, y=(7, 6))

    built = package.torch(model, (y,), dynamic_shapes={"y": {0: 2 * batch, 1: width}})
    for shape in ((8, 6), (10, 3)):
        same(built, model, torch.randn(shape))
    built.save(tmp_path / "model.pappus", overwrite=True)
    assert refused(tmp_path, y=(64, 9)) == ""
    assert "width_is_at_most_9" in refused(tmp_path, y=(64, 10))
    assert "y" in refused(tmp_path, y=(7, 6))

    # Neither number is told: no input has one of them as a dimension.
    with pytest.raises(Unsupported, match=r"dimension 0 of input 'y', 2\*batch: no input has batch itself as a dimension"):
        package.torch(model, (y,), dynamic_shapes={"y": {0: 2 * batch, 1: 3 * width}})


def test_a_dimension_that_is_twice_another_inputs() -> None:
    batch = torch.export.Dim("batch", min=2, max=32)
    model, x, y = Halves().eval(), torch.randn(4, 8), torch.randn(8, 8)
    built = package.torch(model, (x, y), dynamic_shapes={"x": {0: batch}, "y": {0: 2 * batch}})
    for rows in (4, 3):
        same(built, model, torch.randn(rows, 8), torch.randn(2 * rows, 8))


def test_the_structure_of_resnet18(tmp_path: Path, check: Check) -> None:
    model, pixels = models.randomized(models.ResNet18(width=8, classes=10)), torch.randn(1, 3, 32, 32)
    built = package.torch(model, (pixels,))
    same(built, model, pixels, tolerance=1e-4)
    assert "a valid function" in check(built.save(tmp_path / "resnet18.pappus"))
    # One module (two where some kernels are assembled otherwise), and less memory than all buffers take.
    assert suffixes(built) == {"sm_90a.cubin"}
    assert len(built.modules) <= 2
    assert set(built.blueprint["buffers"]) == {"arena", "output"}


class Several(nn.Module):
    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"scaled": (x * scale).t(), "same": x, "row": x[1]}


def test_outputs_are_named_and_have_memory_of_their_own() -> None:
    x, scale = torch.randn(4, 6), torch.randn(6)
    built = package.torch(Several().eval(), (x, scale))
    assert built.blueprint["inputs"] == ["x", "scale"]
    assert built.blueprint["outputs"] == ["scaled", "same", "row"]
    found = built.interpret(x=x.numpy(), scale=scale.numpy())
    np.testing.assert_allclose(found["scaled"], (x * scale).t().numpy(), rtol=1e-6)
    np.testing.assert_array_equal(found["same"], x.numpy())
    np.testing.assert_array_equal(found["row"], x[1].numpy())


def test_code_for_amd_comes_from_the_same_source() -> None:
    model, x = models.MLP().eval(), torch.randn(8, 32)
    built = package.torch(model, (x,), targets=["sm_90", "gfx942"])
    assert suffixes(built) == {"gfx942.hsaco", "sm_90a.cubin"}
    assert built.modules["modules/kernels.gfx942.hsaco"].startswith(b"\x7fELF")
    assert all(launch["block_dim_x"]["Absolute"] % 64 == 0 for _, _, launch in launches(built))
    same(built, model, x)


def test_two_packages_of_one_model_are_equal(tmp_path: Path) -> None:
    model, x = models.MLP().eval(), torch.randn(8, 32)
    files = [package.torch(model, (x,)).save(tmp_path / f"{at}.pappus").read_bytes() for at in range(2)]
    assert files[0] == files[1]


def test_machine_code_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = models.MLP().eval(), torch.randn(8, 32)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    stages = compiling._stages
    made: list[str] = []

    def counted(*given: Any) -> Any:
        backend, found = stages(*given)
        code = found["cubin"]
        return backend, found | {"cubin": lambda *text: made.append("cubin") or code(*text)}

    monkeypatch.setattr(compiling, "_stages", counted)
    files = [package.torch(model, (x,)).save(tmp_path / f"{at}.pappus").read_bytes() for at in range(2)]
    assert made == ["cubin"]
    assert files[0] == files[1]
    # Another target's is another.
    package.torch(model, (x,), targets=["sm_80"])
    assert len(made) == 2


def test_how_float32_is_multiplied_can_be_said(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = models.MLP().eval(), torch.randn(16, 32)
    compiled = compiling._compile
    texts: list[str] = []

    def noted(*given: Any) -> compiling.Compiled:
        found = compiled(*given)
        texts.append(found.text)
        return found

    monkeypatch.setattr(compiling, "_compile", noted)

    def products(float32: str | None, target: str = "sm_90") -> int:
        """How often its kernels speak of TF32."""
        texts.clear()
        built = package.torch(model, (x,), targets=[target], float32=float32)
        same(built, model, x)
        return "".join(texts).count("tf32")

    assert products("ieee") == 0
    # Three products, and what splits their factors.
    assert products("tf32x3") >= 3 * products("tf32") > 0
    # PyTorch is told no TF32 in matrix products, by default: it is as exact.
    assert products(None) == products("tf32x3")
    assert [precision.told(precision.check(None), tf32=tf32) for tf32 in (True, False)] == ["tf32", "tf32x3"]
    assert [precision.told("ieee", tf32=tf32) for tf32 in (True, False)] == ["ieee", "ieee"]
    # A target that has none of them multiplies in full.
    assert products("tf32x3", "gfx942") == 0
    with pytest.raises(PackageError, match="expected one of ieee, tf32, tf32x3"):
        package.torch(model, (x,), float32="fast")


def test_candidates_are_functions_and_a_table_chooses_among_them(tmp_path: Path, check: Check) -> None:
    model, x = models.MLP().eval(), torch.randn(64, 32)
    folder = package.torch(model, (x,), candidates=3).save(tmp_path / "mlp")
    points = json.loads((folder / "tuning/points.json").read_text())
    assert len(points) == 2
    for at, point in enumerate(points):
        assert len(set(point["candidates"])) == 3
        for number in range(3):
            check(folder / "tuning" / str(at) / str(number))
    chosen = {point["operation"]: {"choice": point["candidates"][2]} for point in points}
    (folder / "tuning/table.json").write_text(json.dumps({"A GPU": chosen}))
    tuned = package.torch(model, (x,), tuning=folder)
    same(tuned, model, x)
    assert tuned.modules != package.torch(model, (x,)).modules
    # The measurements travel on, and are enough to make it again.
    final = tuned.save(tmp_path / "tuned.pappus")
    assert set(tuned.extra) == {"tuning/table.json"}
    check(final)
    again = package.torch(model, (x,), tuning=final)
    assert again.save(tmp_path / "again.pappus").read_bytes() == final.read_bytes()
    with pytest.raises(package.PackageError, match="measurements of"):
        package.torch(model, (x,), tuning=folder, tuned_for="another")
