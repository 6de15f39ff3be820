"""Functions of JAX as packages: what the blueprint computes, kernel by kernel, is what JAX computes on the processor."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo
import networks
from pappus import package
from pappus.package import Package, PackageError

Check = Callable[[Path], str]


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def same(function: Any, inputs: Sequence[Any], weights: Any = None, tolerance: float = 1e-5) -> Package:
    """Packages a function, and compares each output with JAX's, relative to the largest value."""
    built = package.jax(function, inputs, weights=weights)
    given = inputs if weights is None else (weights, *inputs)
    wanted = jax.tree_util.tree_leaves(jax.jit(function)(*given))
    named = jax.tree_util.tree_leaves(inputs)
    found = hlo.runnable(function, inputs, built, weights)(**dict(zip(built.blueprint["inputs"], named, strict=True)))
    for name, want in zip(found, wanted, strict=True):
        assert found[name].shape == want.shape
        assert found[name].dtype == want.dtype
        want, have = np.asarray(want, np.float64), found[name].astype(np.float64)
        assert np.abs(want - have).max(initial=0) <= tolerance * max(1.0, np.abs(want).max(initial=0)), name
    return built


def actions(flow: Sequence[Any], kind: str) -> list[Any]:
    """All of a kind, those in loops included."""
    found = [step[kind] for step in flow if kind in step]
    return found + [each for step in flow if "Repeat" in step for each in actions(step["Repeat"][1], kind)]


def test_a_dense_network_with_its_weights(tmp_path: Path, check: Check) -> None:
    weights = networks.dense_weights()
    built = same(networks.dense, (normal(16, 64),), weights)
    assert built.blueprint["inputs"] == ["x"]
    assert built.blueprint["outputs"] == ["output"]
    names = ["first.bias", "first.kernel", "second.bias", "second.kernel"]
    assert built.blueprint["weights"] == names
    for name, file in built.document["weight_files"].items():
        layer, part = name.split(".")
        np.testing.assert_array_equal(built.weights[name].array, weights[layer][part])
        assert file == f"weights/{name}.npy"
    assert built.blueprint["types"]["first.kernel"] == {"dtype": "f32", "shape": [{"Absolute": 64}, {"Absolute": 128}]}
    assert built.blueprint["types"]["output"] == {"dtype": "f32", "shape": [{"Absolute": 16}, {"Absolute": 32}]}
    assert set(built.blueprint["buffers"]) == {"arena", "output"}
    for name in ("dense.pappus", "dense"):
        assert "a valid function" in check(built.save(tmp_path / name))
        assert all(path.endswith(".sm_90a.cubin") for path in built.modules)


def test_a_transformer(tmp_path: Path, check: Check) -> None:
    built = same(networks.transformer, (normal(2, 16, 32),), networks.block_weights(), tolerance=1e-4)
    assert {"words", "layers.0.qkv", "layers.1.down"} <= set(built.blueprint["weights"])
    assert "a valid function" in check(built.save(tmp_path / "transformer.pappus"))


def test_softmax_alone() -> None:
    same(jax.nn.softmax, (normal(33, 1000),))


def test_arrays_that_a_function_holds_are_weights(tmp_path: Path, check: Check) -> None:
    kernel, bias = normal(64, 48), normal(48, seed=1)
    built = same(lambda x: jnp.tanh(x @ kernel + bias), (normal(8, 64),))
    assert built.blueprint["weights"] == ["constant0", "constant1"]
    assert sorted(weight.array.shape for weight in built.weights.values()) == [(48,), (64, 48)]
    check(built.save(tmp_path / "held"))


def test_arrays_that_only_xla_sees_are_weights_too(tmp_path: Path, check: Check) -> None:
    kernel = normal(64, 48)
    inner = jax.jit(lambda x: x @ kernel)
    built = same(lambda x: inner(x) + 1, (normal(8, 64),))
    assert kernel.tobytes() in [weight.array.tobytes() for weight in built.weights.values()]
    check(built.save(tmp_path / "held"))


def test_bf16(tmp_path: Path, check: Check) -> None:
    weights, x = networks.dense_weights(jnp.bfloat16), normal(16, 64).astype(jnp.bfloat16)
    built = same(networks.dense, (x,), weights, tolerance=2e-2)
    assert built.blueprint["types"]["output"]["dtype"] == "bf16"
    assert built.weights["first.kernel"].content() == weights["first"]["kernel"].tobytes()
    assert "a valid function" in check(built.save(tmp_path / "bf16.pappus"))


def test_outputs_are_named_and_have_memory_of_their_own() -> None:
    def several(x: Any, scale: Any) -> Any:
        return {"scaled": (x * scale).T, "same": x, "again": x, "row": x[1]}

    built = same(several, (normal(4, 6), normal(6)))
    assert built.blueprint["inputs"] == ["x", "scale"]
    assert built.blueprint["outputs"] == ["again", "row", "same", "scaled"]
    assert set(built.blueprint["outputs"]) <= set(built.blueprint["buffers"])


def test_trees_of_inputs_are_named_by_their_way() -> None:
    def of_tree(batch: Any, *more: Any) -> Any:
        return batch["x"] * batch["parts"][0] + more[0], more[1] > 0

    built = same(of_tree, ({"x": normal(5), "parts": [normal(5, seed=1)]}, normal(5, seed=2), np.int32([1, -1])))
    assert built.blueprint["inputs"] == ["batch.parts.0", "batch.x", "more0", "more1"]
    assert built.blueprint["outputs"] == ["output0", "output1"]
    assert [built.blueprint["types"][name]["dtype"] for name in ("more1", "output0", "output1")] == ["i32", "f32", "bool"]


def test_examples_may_be_shapes_and_numbers() -> None:
    built = package.jax(lambda x, n: x * n, (jax.ShapeDtypeStruct((3, 4), jnp.float16), np.float16(2)))
    assert built.blueprint["types"]["x"] == {"dtype": "f16", "shape": [{"Absolute": 3}, {"Absolute": 4}]}
    assert built.blueprint["types"]["n"] == {"dtype": "f16", "shape": []}


def test_an_input_that_is_not_used_stays_one() -> None:
    built = same(lambda x, unused: x + 1, (normal(4), normal(3)))
    assert built.blueprint["inputs"] == ["x", "unused"]


def test_a_loop_over_layers_is_written_out(tmp_path: Path, check: Check) -> None:
    layers = normal(3, 16, 16) / 4

    def deep(weights: Any, x: Any) -> Any:
        return jax.lax.scan(lambda carried, layer: (jnp.tanh(carried @ layer), carried.sum()), x, weights)

    built = same(deep, (normal(8, 16),), layers)
    assert built.blueprint["weights"][0] == "weights"
    # Each turn takes its layer, and puts its sum in its place.
    copies = actions(built.blueprint["control_flow"], "Copy")
    taken = [copy["from_offset"]["Absolute"] for copy in copies if copy["from"] == "weights"]
    assert taken in ([0, 1024, 2048], [])
    assert "Repeat" not in json.dumps(built.blueprint["control_flow"])
    check(built.save(tmp_path / "deep"))


def test_a_loop_whose_turns_are_the_same_is_repeated(tmp_path: Path, check: Check) -> None:
    built = same(lambda x: jax.lax.fori_loop(0, 9, lambda _, c: jnp.sin(c) @ c, x), (normal(16, 16) / 8,))
    (repeat,) = actions(built.blueprint["control_flow"], "Repeat")
    assert repeat[0] == {"Absolute": 9}
    check(built.save(tmp_path / "repeated"))


def test_places_that_data_decide_are_a_kernels_affair() -> None:
    def turn(_: Any, x: Any) -> Any:
        return jax.lax.dynamic_update_slice(x, x[:1] + 1, (x[0, 0].astype(int), 0))

    built = same(lambda x: jax.lax.fori_loop(0, 3, turn, x), (np.zeros((8, 4), np.float32),))
    assert len(actions(built.blueprint["control_flow"], "Repeat")) == 1


def test_sorting_is_a_kernel(tmp_path: Path, check: Check) -> None:
    built = package.jax(lambda x: (jnp.sort(x), *jax.lax.top_k(x, 3)), (normal(8, 64),))
    assert any("sort" in name for name in built.modules)
    check(built.save(tmp_path / "sort"))


@pytest.mark.parametrize("arch", ["sm_90", "sm_100"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("shape", [(512, 512, 512), (8, 4096, 4096), (4096, 4096, 4096)])
def test_products_take_no_tensor_maps(arch: str, dtype: Any, shape: tuple[int, int, int], tmp_path: Path, check: Check) -> None:
    """XLA's own tiles have them, for most of these."""
    rows, summed, columns = shape
    x, y = jax.ShapeDtypeStruct((rows, summed), dtype), jax.ShapeDtypeStruct((summed, columns), dtype)
    built = package.jax(lambda x, y: x @ y, (x, y), targets=[arch])
    launches = actions(built.blueprint["control_flow"], "ExecKernel")
    assert any("gemm" in name for name, _, _ in launches)
    assert {kind for _, arguments, _ in launches for argument in arguments for kind in argument} == {"Ptr"}
    assert "kernels and parameters fit" in check(built.save(tmp_path / "product"))


def test_a_large_product() -> None:
    same(lambda x, y: x @ y, (normal(512, 512), normal(512, 512, seed=1)), tolerance=1e-4)


def test_two_packages_of_one_function_are_equal(tmp_path: Path) -> None:
    x, weights = normal(16, 64), networks.dense_weights()
    files = [package.jax(networks.dense, (x,), weights=weights).save(tmp_path / f"{at}.pappus") for at in range(2)]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_machine_code_is_not_interpreted() -> None:
    built = package.jax(lambda x: x + 1, (normal(4),))
    with pytest.raises(PackageError, match="only machine code"):
        built.interpret(x=normal(4))
