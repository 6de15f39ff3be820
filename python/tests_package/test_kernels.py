"""Triton kernels as packages: one launch, several, autotuned, with dimensions that a call decides."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import triton

import kernels
from pappus import package
from pappus.package import PackageError

Check = Callable[[Path], str]
RANDOM = np.random.default_rng(0)


def numbers(*shape: int) -> Any:
    return RANDOM.standard_normal(shape, dtype=np.float32)


def launches(built: package.Package) -> list[Any]:
    return [step["ExecKernel"] for step in built.blueprint["control_flow"]]


def added(n: Any, **more: Any) -> package.Package:
    x, y, out = (package.array(name, "f32", (n,)) for name in ("x", "y", "out"))
    grid = lambda given: (triton.cdiv(x.shape[0], given["BLOCK"]),)  # noqa: E731
    return package.triton(kernels.add, grid, x, y, out, x.shape[0], BLOCK=256, outputs=[out], **more)


def test_one_launch_of_fixed_size(tmp_path: Path, check: Check) -> None:
    built = added(1000, targets=["sm_80", "sm_90", "gfx942"])
    x, y = numbers(1000), numbers(1000)
    np.testing.assert_array_equal(built.interpret(x=x, y=y)["out"], x + y)
    ((name, arguments, launch),) = launches(built)
    assert name == "add"
    # Behind its own parameters a kernel of Triton's takes two pointers that are zero.
    assert arguments == [{"Ptr": "x"}, {"Ptr": "y"}, {"Ptr": "out"}, {"I32": 1000}, {"U64": 0}, {"U64": 0}]
    assert launch["grid_dim_x"] == {"Absolute": 4}
    assert built.blueprint["types"]["x"] == {"dtype": "f32", "shape": [{"Absolute": 1000}]}
    said = check(built.save(tmp_path / "add.pappus"))
    assert said.count("kernels and parameters fit") == len(built.modules)
    assert "gfx942.hsaco: kernels and parameters fit" in said


def test_a_dimension_that_the_call_decides(tmp_path: Path, check: Check) -> None:
    built = added("n")
    for n in (1, 255, 256, 1000):
        x, y = numbers(n), numbers(n)
        np.testing.assert_array_equal(built.interpret(x=x, y=y)["out"], x + y)
    assert launches(built)[0][2]["grid_dim_x"]["CeilDiv"][1] == {"Absolute": 256}
    check(built.save(tmp_path / "add"))


def test_numbers_are_specialised_as_triton_does() -> None:
    kernel = next(iter(added(1).plan.kernels.values()))
    assert kernel.signature["n"] == "constexpr"
    kernel = next(iter(added(1024).plan.kernels.values()))
    assert kernel.attributes[(3,)] == [["tt.divisibility", 16]]
    kernel = next(iter(added(1000).plan.kernels.values()))
    assert (3,) not in kernel.attributes
    assert kernel.attributes[(0,)] == [["tt.divisibility", 16]]


def test_launches_in_sequence_with_weights_and_a_buffer(tmp_path: Path, check: Check) -> None:
    weights = numbers(24, 40)
    x, w = package.array("x", "f32", ("rows", 24)), package.weight("w", weights)
    scores, out = package.array("scores", "f32", (x.shape[0], 40)), package.array("out", "f32", (x.shape[0], 40))
    rows = x.shape[0]
    builder = package.Builder()
    builder.launch(kernels.matmul, (triton.cdiv(rows, 16), 3), x, w, scores, rows, 40, 24, BM=16, BN=16, BK=16)
    builder.launch(kernels.softmax, (rows,), scores, out, 40, 0.5)
    built = builder.build(inputs=[x], outputs=[out])
    given = numbers(7, 24)
    wanted = np.exp(given @ weights * 0.5)
    wanted /= wanted.sum(1, keepdims=True)
    np.testing.assert_allclose(built.interpret(x=given)["out"], wanted, rtol=1e-5, atol=1e-6)
    assert built.blueprint["weights"] == ["w"]
    assert set(built.blueprint["buffers"]) == {"scores", "out"}
    check(built.save(tmp_path / "attention.pappus"))


@pytest.mark.parametrize("config", [0, 1])
def test_configurations_of_an_autotuned_kernel(config: int) -> None:
    x, out = package.array("x", "f32", (3, 100)), package.array("out", "f32", (3, 100))
    built = package.triton(kernels.softmax, (3,), x, out, 100, 1.0, outputs=[out], config=config)
    kernel = next(iter(built.plan.kernels.values()))
    assert 128 * 4**config in kernel.constants.values()
    given = numbers(3, 100)
    wanted = np.exp(given)
    np.testing.assert_allclose(built.interpret(x=given)["out"], wanted / wanted.sum(1, keepdims=True), rtol=1e-5)


def blocks(built: package.Package) -> list[int]:
    """The block sizes of its kernels."""
    return [kernel.constants[(4,)] for kernel in built.plan.kernels.values()]


def test_candidates_of_an_autotuned_kernel_and_the_table_that_chooses(tmp_path: Path, check: Check) -> None:
    def softmax(**more: Any) -> package.Package:
        x, out = package.array("x", "f32", ("rows", 100)), package.array("out", "f32", ("rows", 100))
        return package.triton(kernels.softmax, (x.shape[0],), x, out, 100, 0.5, outputs=[out], **more)

    with pytest.raises(PackageError, match=r"dimensions \['rows'\] are free"):
        softmax(candidates=2)
    built = softmax(candidates=8, extents={"rows": 3}, targets=["sm_80", "sm_90"])
    assert blocks(built) == [128]
    folder = built.save(tmp_path / "softmax")
    (point,) = json.loads((folder / "tuning/points.json").read_text())
    assert point["operation"] == "softmax columns=100 out_ptr=f32[rows,100] scale=0.5 x_ptr=f32[rows,100]"
    assert [name.split()[0] for name in point["candidates"]] == ["BLOCK=128", "BLOCK=512"]
    for number in range(2):
        assert "a valid function" in check(folder / "tuning/0" / str(number))
        candidate = json.loads((folder / "tuning/0" / str(number) / "function.json").read_text())["blueprint"]
        assert candidate["buffers"]["x"] == {"Absolute": 1200}
        ((times, (step,)),) = [action["Repeat"] for action in candidate["control_flow"]]
        assert (times, step["ExecKernel"][2]["grid_dim_x"]) == ({"Absolute": 20}, {"Absolute": 3})
    assert len(json.loads(softmax(candidates=1, extents={"rows": 3}).extra["tuning/points.json"])[0]["candidates"]) == 1

    row = {"choice": point["candidates"][1], "execute_ns": 1.0, "candidates": 2}
    (folder / "tuning/table.json").write_text(json.dumps({"A GPU": {point["operation"]: row, "another": row}}))
    tuned = softmax(tuning=folder)
    assert blocks(tuned) == [512]
    assert json.loads(tuned.extra["tuning/table.json"]) == {"A GPU": {point["operation"]: row}}
    given = numbers(4, 100)
    wanted = np.exp(given * 0.5)
    np.testing.assert_allclose(tuned.interpret(x=given)["out"], wanted / wanted.sum(1, keepdims=True), rtol=1e-5)
    # The one that is said stays, and the final package is enough to make it again.
    assert blocks(softmax(tuning=folder, config=0)) == [128]
    assert blocks(softmax(tuning=tuned.save(tmp_path / "tuned.pappus"))) == [512]


def test_configurations_that_are_given() -> None:
    configs = [triton.Config({"BLOCK": size}, num_warps=warps) for size, warps in ((64, 2), (256, 4), (1024, 8))]
    x, y, out = (package.array(name, "f32", (1000,)) for name in ("x", "y", "out"))
    grid = lambda given: (triton.cdiv(1000, given["BLOCK"]),)  # noqa: E731
    builder = package.Builder()
    builder.launch(kernels.add, grid, x, y, out, 1000, configs=configs)
    builder.launch(kernels.add, grid, out, y, out, 1000, configs=configs, config=2)
    builder.launch(kernels.add, grid, out, y, out, 1000, BLOCK=128)
    built = builder.build(inputs=[x, y], outputs=[out], candidates=5)
    assert blocks(built) == [64, 1024, 128]
    assert [launch["grid_dim_x"]["Absolute"] for _, _, launch in launches(built)] == [16, 1, 8]
    assert [launch["block_dim_x"]["Absolute"] for _, _, launch in launches(built)] == [64, 256, 128]
    # Only what leaves a choice is timed.
    (point,) = json.loads(built.extra["tuning/points.json"])
    assert len(point["candidates"]) == 3
    a, b = numbers(1000), numbers(1000)
    np.testing.assert_allclose(built.interpret(x=a, y=b)["out"], a + 3 * b, rtol=1e-5, atol=1e-5)

    hooked = triton.Config({"BLOCK": 64}, pre_hook=print)
    for words, more in (
        ("pre_hook", {"configs": [hooked]}),
        ("no configuration", {"configs": []}),
        ("no triton.Config", {"configs": [7]}),
    ):
        with pytest.raises(PackageError, match=words):
            package.triton(kernels.add, grid, x, y, out, 1000, outputs=[out], **more)
    with pytest.raises(PackageError, match="has no configurations, 3"):
        package.triton(kernels.add, grid, x, y, out, 1000, BLOCK=64, config=3, outputs=[out])


def test_a_kernel_specialised_twice_is_two_kernels() -> None:
    x, y, z = (package.array(name, "f32", (64,)) for name in "xyz")
    builder = package.Builder()
    builder.launch(kernels.add, (1,), x, x, y, 64, BLOCK=64)
    builder.launch(kernels.add, (1,), x, y, z, 64, BLOCK=64)
    builder.launch(kernels.add, (1,), z, y, z, 64, BLOCK=128)
    built = builder.build(inputs=[x], outputs=[z])
    assert [name for name, _, _ in launches(built)] == ["add", "add", "add_2"]
    given = numbers(64)
    np.testing.assert_allclose(built.interpret(x=given)["z"], given * 5, rtol=1e-6)


def test_a_buffer_that_kernels_add_to_begins_with_zeros() -> None:
    x, between, thrice, total, out = (package.array(name, "f32", (64,)) for name in ("x", "between", "thrice", "total", "out"))
    builder = package.Builder()
    builder.launch(kernels.add, (1,), x, x, between, 64, BLOCK=64)
    builder.launch(kernels.add, (1,), between, x, thrice, 64, BLOCK=64)
    # What lies between is of no use any more; its bytes would be the sum's.
    builder.launch(kernels.accumulate, (1,), x, total, 64, BLOCK=64)
    builder.launch(kernels.add, (1,), total, x, out, 64, BLOCK=64)
    given = numbers(64)
    found = builder.build(inputs=[x], outputs=[thrice, out]).interpret(x=given)
    np.testing.assert_allclose(found["thrice"], given * 3, rtol=1e-6)
    np.testing.assert_allclose(found["out"], given * 2, rtol=1e-6)


def test_constants_that_are_equal_and_not_the_same_are_of_two_kernels() -> None:
    x, doubled, out = (package.array(name, "i32", (1,)) for name in ("x", "doubled", "out"))
    builder = package.Builder()
    builder.launch(kernels.times, (1,), x, doubled, 1, SCALE=2.0, BLOCK=16)
    builder.launch(kernels.times, (1,), x, out, 1, SCALE=2, BLOCK=16)
    built = builder.build(inputs=[x], outputs=[doubled, out])
    assert [name for name, _, _ in launches(built)] == ["times", "times_2"]
    # More than the mantissa of a float32 has.
    assert built.interpret(x=np.array([16777217], np.int32))["out"].tolist() == [33554434]


def test_a_parameter_may_be_called_as_an_option_of_a_launch() -> None:
    x, out = package.array("x", "f32", (100,)), package.array("out", "f32", (100,))
    built = package.triton(kernels.add_in_stages, (1,), x, out, 100, BLOCK=32, num_stages=3, outputs=[out])
    (kernel,) = built.plan.kernels.values()
    assert kernel.options["num_stages"] == 3
    given = numbers(100)
    np.testing.assert_allclose(built.interpret(x=given)["out"], given + 3, rtol=1e-6)


def test_scratch_memory_is_a_buffer() -> None:
    x, out = package.array("x", "f16", (128, 64)), package.array("out", "f16", (128, 64))
    built = package.triton(kernels.copy_rows, (2, 1), x, out, 128, 64, BM=64, BN=64, outputs=[out])
    ((_, arguments, launch),) = launches(built)
    assert arguments[-2] == {"Ptr": "scratch_copy_rows"}
    assert built.blueprint["buffers"]["scratch_copy_rows"]["Absolute"] % 512 == 0
    assert launch["grid_dim_x"] == {"Absolute": 2}


def test_clusters_are_told() -> None:
    a, b, c = (package.array(name, "f16", (128, 128)) for name in "abc")
    built = package.triton(kernels.matmul, (2, 2), a, b, c, 128, 128, 128, BM=64, BN=64, BK=32, num_ctas=2, outputs=[c])
    ((_, _, launch),) = launches(built)
    assert launch["cluster_dim_x"] == {"Absolute": 2}
    assert launch["grid_dim_x"] == {"Absolute": 4}


def test_a_kernel_whose_stages_no_block_has_memory_for_gets_fewer() -> None:
    a, b, c = (package.array(name, "f16", (128, 128)) for name in "abc")
    how = {"BM": 128, "BN": 128, "BK": 64, "num_stages": 12, "targets": ["sm_90"]}
    built = package.triton(kernels.matmul, (1, 1), a, b, c, 128, 128, 128, **how, outputs=[c])
    ((_, _, launch),) = launches(built)
    # As many as fit: another one takes 32 KiB.
    assert 195 << 10 < launch["shared_mem_bytes"]["Absolute"] <= 227 << 10


def test_mistakes_are_named() -> None:
    x, out = package.array("x", "f32", (64,)), package.array("out", "f32", (64,))
    cases: list[tuple[str, Any]] = [
        ("parameter 'out_ptr' is missing", lambda: package.triton(kernels.add, (1,), x, x, n=64, BLOCK=64, outputs=[out])),
        ("takes no further 'm'", lambda: package.triton(kernels.add, (1,), x, x, out, 64, m=1, BLOCK=64, outputs=[out])),
        ("takes 5 parameters, it is given 6", lambda: package.triton(kernels.add, (1,), x, x, out, 1, 2, 3, outputs=[out])),
        ("is no @triton.jit function", lambda: package.triton(print, (1,), x, outputs=[out])),
        ("2 configurations", lambda: package.triton(kernels.softmax, (1,), x, out, 64, 1.0, outputs=[out], config=2)),
        (
            "two arrays are called 'x'",
            lambda: package.triton(kernels.add, (1,), x, package.array("x", "f32", (1,)), out, 64, BLOCK=64, outputs=[out]),
        ),
        ("'complex64' is no element type", lambda: package.array("x", "complex64", (1,))),
    ]
    for words, call in cases:
        with pytest.raises(PackageError, match=words.replace("(", r"\(")):
            call()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_types_that_numpy_lacks_are_described_by_their_names(dtype: torch.dtype) -> None:
    name = str(dtype).removeprefix("torch.").replace("bfloat", "bf").replace("float8_", "f8")
    values = torch.tensor([1.5, -2]).to(dtype)
    described = package.array("x", dtype, (2,)), package.weight("w", values)
    assert [each.dtype for each in described] == [name, name]
    assert described[1].data.tobytes() == values.view(torch.uint8).numpy().tobytes()
