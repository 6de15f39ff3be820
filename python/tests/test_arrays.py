"""What an array may be: order of bytes, strides, types, shapes, numbers that lose value; as input, weights and output alike."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pappus
from fixture import KERNELS
from pappus import _arrays, _npy, _numbers

Echo = Callable[..., pappus.Function]
A = np.arange(1, 7, dtype=np.float32)
MESSAGE_BYTES = 400


def test_shared_memory_seen_in_another_order_of_bytes_is_the_same_numbers(
    client: pappus.Client, vec_add: pappus.Function
) -> None:
    arena = client.arena(1 << 16)
    zero = np.zeros(6, np.float32)
    view = arena.empty(6, "f32").view(">f4")
    view[:] = A
    lent = vec_add.options(copy=False)(zero, zero).view(">f4")
    lent[:] = A
    for array in (A.astype(">f4"), view, lent):
        np.testing.assert_array_equal(vec_add(array, zero), A)
    # As it lies, it is used where it lies: nothing is copied without need.
    native = arena.array(A)
    assert client._pool.find(native, callers_only=False) is not None
    assert client._pool.find(view, callers_only=False) is None


def test_outputs_go_into_arrays_of_another_order_of_bytes(client: pappus.Client, vec_add: pappus.Function) -> None:
    arena = client.arena(1 << 16)
    for out in (np.zeros(6, ">f4"), arena.empty(6, "f32").view(">f4"), np.zeros((6, 2), ">f4")[:, 1]):
        assert vec_add.options(out=out)(A, A) is out
        np.testing.assert_array_equal(out, 2 * A)


def test_an_output_is_judged_before_the_call(client: pappus.Client, echo: Echo) -> None:
    square = echo(("X", "f32"), shape=[{"Absolute": 2}, {"Absolute": 3}])
    x = A.reshape(2, 3)
    arena = client.arena(4096)
    place, turned = arena.empty((2, 3), "i32"), arena.empty((3, 2), "f32")
    place[:] = turned[:] = 7
    with pytest.raises(pappus.InvalidArgument, match=r"i32\[2,3\] came, f32\[2,3\] is expected") as caught:
        square.options(out=place)
    assert caught.value.place == "out Xo"
    for wrong in (np.zeros(6, np.float32), np.zeros((3, 2), np.float32), np.zeros((2, 3, 1), np.float32)):
        with pytest.raises(pappus.InvalidArgument, match=r"came, f32\[2,3\] is expected"):
            square.options(out=wrong)(x)
        assert not wrong.any()
    with pytest.raises(pappus.InvalidArgument, match="written"):
        square.options(out=np.ma.masked_array(x))
    # Where they lie is where a worker would have written.
    with pytest.raises(pappus.InvalidArgument, match=r"f32\[3,2\] came, f32\[2,3\] is expected"):
        square.options(out=turned)(x)
    assert (place == 7).all()
    assert (turned == 7).all()
    np.testing.assert_array_equal(square.options(out=arena.empty((2, 3), "f32"))(x), x)


def weighted(folder: Path, types: dict[str, Any]) -> Path:
    """A function that returns its weights."""
    blueprint = {
        "inputs": [],
        "weights": ["W"],
        "buffers": {"C": {"Sizeof": "W"}},
        "outputs": ["C"],
        "types": types,
        "control_flow": [{"Copy": {"from": "W", "to": "C"}}],
    }
    path = folder / "weighted.json"
    path.write_text(json.dumps({"module_path": str(KERNELS / "built/module.wasm"), "kernels": [], "blueprint": blueprint}))
    return path


def test_weights_are_checked_or_converted_when_they_are_registered(client: pappus.Client, tmp_path: Path) -> None:
    shape = [{"Absolute": 2}, {"Absolute": 3}]
    declared = {"W": {"dtype": "f32", "shape": shape}, "C": {"dtype": "f32", "shape": shape}}
    path, good = weighted(tmp_path, declared), A.reshape(2, 3)

    def add(weights: Any) -> pappus.Function:
        return client.add_function("weighted", path, weights={"W": weights}, replace=True)

    def saved(array: np.ndarray[Any, Any]) -> Path:
        np.save(tmp_path / "w.npy", array)
        return tmp_path / "w.npy"

    strided = np.repeat(good, 2, axis=1)[:, ::2]
    for array in (good, good.astype(">f4"), np.asfortranarray(good), np.asfortranarray(good.astype(">f4")), strided):
        for given in (array, saved(array)):
            np.testing.assert_array_equal(add(given)(), good)
    for given in (good.tolist(), good.tobytes()):
        np.testing.assert_array_equal(add(given)(), good)
    for wrong in (good.astype("f8"), good.astype("i4"), good.T.copy(), A, A[:5]):
        for given in (wrong, saved(wrong)):
            with pytest.raises(pappus.InvalidArgument, match=r"came, f32\[2,3\] is expected") as caught:
                add(given)
            assert caught.value.place.startswith("weights W")
    with pytest.raises(pappus.InvalidArgument, match=r"20 bytes came, f32\[2,3\] is expected"):
        add(A[:5].tobytes())


def test_weights_without_a_type_are_their_numbers_as_devices_have_them(client: pappus.Client, tmp_path: Path) -> None:
    path = weighted(tmp_path, {})
    for array in (A, A.astype(">f4"), A.reshape(2, 3).T, np.complex64([1 + 2j, 3]), np.complex64([1 + 2j, 3]).astype(">c8")):
        function = client.add_function("weighted", path, weights={"W": array}, replace=True)
        assert function().tobytes() == array.astype(array.dtype.newbyteorder("<")).tobytes()


def test_weights_that_fit_no_call_are_refused_by_the_supervisor(client: pappus.Client, tmp_path: Path) -> None:
    # Copies of 24 bytes: that the weights have them, no declaration says.
    path = weighted(tmp_path, {})
    document = json.loads(path.read_text())
    document["blueprint"]["control_flow"][0]["Copy"]["bytes"] = {"Absolute": 24}
    path.write_text(json.dumps(document))
    client.add_function("weighted", path, weights={"W": A}, replace=True)
    with pytest.raises(pappus.InvalidArgument, match='24 bytes from 0 on, but "W" has 20') as caught:
        client.add_function("weighted", path, weights={"W": A[:5]}, replace=True)
    assert caught.value.message.startswith(f"{path}:1:"), caught.value.message
    assert ": at blueprint.control_flow[0].Copy.from: 24 bytes" in caught.value.message


def test_a_flat_array_is_no_matrix_and_bytes_are_what_they_are(echo: Echo) -> None:
    square = echo(("X", "f32"), shape=[{"Absolute": 2}, {"Absolute": 3}])
    good = A.reshape(2, 3)
    for given in (good, good.tobytes(), good.tolist(), np.asfortranarray(good)):
        np.testing.assert_array_equal(square(given), good)
    for wrong in (A, A.tolist(), good.T, 1.0, good.tobytes()[:-4]):
        with pytest.raises(pappus.InvalidArgument, match=r"came, f32\[2,3\] is expected"):
            square(wrong)
    with pytest.raises(pappus.InvalidArgument, match="a multiple of 4"):
        square(b"1234567")


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("f32", [1e300]),
        ("f32", [0.5, -1e39]),
        ("f32", [1e-300]),
        ("f16", [70000.0]),
        ("f16", 70000),
        ("bf16", [257]),
        ("f8e4m3fn", [17]),
        ("f8e4m3fn", [500.5]),
        ("f8e4m3fn", [float("inf")]),
        ("f8e5m2", [61440.0]),
        ("f8e5m2", [1e-9]),
        ("f8e5m2", -(2**63)),
        ("f8e5m2", [0.5, 2**63]),
        ("f32", [2**24 + 1]),
        ("f32", [0.5, 2**24 + 1]),
        ("f64", [[0.5, 1], [2.0, 2**53 + 1]]),
        ("bf16", [0.5, 257]),
        ("f64", 2**63 - 1),
        ("f32", [1 + 2j]),
        ("f32", 1j),
        ("i32", [1 + 0j]),
        ("f32", [None]),
        ("f32", None),
        ("f32", ["1.5"]),
        ("f32", "1.5"),
        ("u8", [b"1"]),
        ("i64", [datetime.date(2026, 11, 26)]),
        ("i64", np.array(["2026-11-26"], "M8[D]")),
        ("i64", [np.datetime64("2026-11-26")]),
        ("i64", [np.timedelta64(1, "s")]),
        ("i32", [1.0]),
        ("i32", [2**31]),
        ("i64", [2**63]),
        ("i64", [2**64]),
        ("u64", [-1]),
        ("u8", [256]),
        ("bool", [2]),
        ("bool", [0.0]),
        ("f32", [float("nan"), "nan"]),
        ("f64", np.longdouble([1.5])),
        ("f32", np.ma.masked_array(A, A > 3)),
        ("f32", [1.0, np.ma.masked]),
        ("f32", [np.ma.masked_array(A, A > 3)]),
        ("f32", {"a": 1}),
        ("f32", [[1.0], [1.0, 2.0]]),
    ],
)
def test_what_loses_value_is_refused(dtype: str, value: Any) -> None:
    with pytest.raises(pappus.InvalidArgument):
        _arrays.as_input("X", value, _arrays.dtype_of(dtype), None)


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("f32", [1, 2.5, True]),
        ("f32", 0.1),
        ("f32", [3.4028234e38, float("inf"), -float("inf"), float("nan"), 1e-45]),
        ("f32", 2**24),
        ("f64", [[0.5, 2**53], [-(2**63), 7]]),
        ("f64", 2**62),
        ("bf16", [1.5, 256]),
        ("f8e4m3fn", [448, 0.1, -0.0, float("nan")]),
        ("f8e5m2", [57344, float("inf")]),
        ("f16", [65504, 0.0]),
        ("i64", [-(2**63), 2**63 - 1]),
        ("u64", [2**64 - 1]),
        ("i32", [2**31 - 1, -(2**31)]),
        ("bool", [True, 0, 1]),
        ("u8", range(3)),
        ("f32", np.float64(0.25)),
        ("f32", []),
    ],
)
def test_numbers_that_are_held_are_taken(dtype: str, value: Any) -> None:
    kind = _arrays.dtype_of(dtype)
    array = _arrays.as_input("X", value, kind, None)
    assert array.dtype == kind
    np.testing.assert_array_equal(array.astype(np.float64), np.array(value).astype(kind).astype(np.float64))


def test_a_fraction_is_rounded_to_eight_bits_once() -> None:
    # Between 1 and 1.125, a little above the middle.
    (found,) = _arrays.as_input("X", [1.0625 + 2**-40], _arrays.dtype_of("f8e4m3fn"), None).astype(np.float64)
    assert found == 1.125


def test_fractions_are_rounded_to_bf16_once() -> None:
    above, below = 1 + 2**-8 + 2**-30, 1 + 3 * 2**-8 - 2**-30
    values = [above, -above, below, -below, 1 + 2**-8, 1 + 3 * 2**-8, 0.1, 3.39e38, 1e-40, float("inf"), -0.0]
    kind = _arrays.dtype_of("bf16")
    array = _arrays.as_input("X", [*values, float("nan")], kind, None).astype(np.float64)
    step = 2**-7
    expected = [1 + step, -1 - step, 1 + step, -1 - step, 1, 1 + 2 * step]
    np.testing.assert_array_equal(array[:6], expected)
    np.testing.assert_array_equal(array[6:], np.array([*values[6:], float("nan")], np.float32).astype(kind).astype(np.float64))
    # The control: by way of f32, they are rounded twice.
    assert (np.array(values[:4]).astype(kind).astype(np.float64) != expected[:4]).all()


def test_masked_arrays_are_refused_in_words(vec_add: pappus.Function) -> None:
    with pytest.raises(pappus.InvalidArgument, match=r"masked array: its mask would be lost.*\.filled") as caught:
        vec_add(np.ma.masked_array(A, A > 3), A)
    assert caught.value.place == "A"
    np.testing.assert_array_equal(vec_add(np.ma.masked_array(A, A > 3).filled(0), A * 0), [1, 2, 3, 0, 0, 0])


@pytest.mark.parametrize(
    "value",
    [
        [0.5] * 1_000_000 + [1e300],
        ["x" * 1_000_000],
        "x" * 1_000_000,
        [[1.0] * 100_000, [1.0]],
        [None] * 1_000_000,
        10**100_000,
        np.array(["x" * 1_000_000]),
        {"x" * 1_000_000: 1},
        [np.zeros(100_000), "x"],
    ],
    ids=lambda value: type(value).__name__,
)
def test_no_message_carries_the_whole_value(value: Any) -> None:
    with pytest.raises(pappus.InvalidArgument) as caught:
        _arrays.as_input("X", value, _arrays.dtype_of("f32"), None)
    assert len(str(caught.value)) < MESSAGE_BYTES
    assert len(_numbers.shown(value)) < MESSAGE_BYTES


def test_types_that_are_declared_stay(echo: Echo) -> None:
    function = echo(("X", "f32"))
    function.options(dtypes={"X": "f32"})
    with pytest.raises(pappus.InvalidArgument, match="the function declares f32"):
        function.options(dtypes={"X": "i32"})
    with pytest.raises(pappus.InvalidArgument, match="no type of numbers"):
        echo(("X", None)).options(dtypes={"X": "text"})


@pytest.mark.parametrize(("dtype", "bits"), [("bf16", "u16"), ("f8e4m3fn", "u8"), ("f8e5m2", "u8")])
def test_bits_of_what_numpy_lacks_come_as_it_saves_them(echo: Echo, tmp_path: Path, dtype: str, bits: str) -> None:
    values = np.array([1.5, -2], _arrays.dtype_of(dtype))
    np.save(tmp_path / "a.npy", values)
    # Of E5M2 it writes a type that it does not read.
    loaded = np.load(tmp_path / "a.npy") if dtype != "f8e5m2" else _npy.read(tmp_path / "a.npy")
    function = echo(("X", dtype))
    np.testing.assert_array_equal(function(loaded), values)
    with pytest.raises(pappus.InvalidArgument, match=rf"{bits}\[2\] came, {dtype} is expected"):
        function(values.view(_arrays.dtype_of(bits)))


def test_what_is_put_into_an_arena_keeps_its_value(client: pappus.Client, vec_add: pappus.Function) -> None:
    arena = client.arena(4096)
    for source in (A, A.astype(">f4"), np.repeat(A, 2)[::2], A.tolist(), A.tobytes()):
        array = arena.array(source, "f32")
        assert client._pool.find(array, callers_only=True) is not None
        np.testing.assert_array_equal(vec_add(array, array), 2 * A)
    for lost in (np.float64([1e300]), [1e300], np.ma.masked_array(A)):
        with pytest.raises(pappus.InvalidArgument):
            arena.array(lost, "f32")
