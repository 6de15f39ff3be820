"""The files of ``tests/npy`` as weights and as inputs: what is taken, and the bytes that are sent. No supervisor is asked."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  (bf16)
import numpy as np
import pytest

import pappus
from fixture import REPOSITORY
from pappus import _files, _memory, _npy, v1
from pappus._call import Bound, Options
from pappus._pool import Mapped, Pool
from pappus._signature import Signature

CORPUS = REPOSITORY / "tests/npy"
CASES: list[dict[str, Any]] = json.loads((CORPUS / "cases.json").read_text())


def types(name: str, declared: str) -> dict[str, Any]:
    """``f32[2,3]``, or ``-``, as a blueprint declares it."""
    if declared == "-":
        return {}
    dtype, bracket, dims = declared.partition("[")
    shape = [{"Absolute": int(dim)} for dim in dims.rstrip("]").split(",") if dim]
    return {name: {"dtype": dtype, "shape": shape} if bracket else {"dtype": dtype}}


def rows() -> Iterator[tuple[dict[str, Any], Path, str, bool]]:
    for case in CASES:
        for declared, fits in case["declared"].items():
            yield case, CORPUS / case["file"], declared, fits


def weights_sent(path: Path, declared: str, folder: Path) -> bytes:
    blueprint = {"inputs": [], "weights": ["W"], "types": types("W", declared)}
    config = folder / "f.json"
    config.write_text(json.dumps({"module_path": "m.wasm", "kernels": [], "blueprint": blueprint}))
    package = _files.read(config, {"W": path})
    with _files.pieces(package.weights["W"]) as (size, pieces):
        sent = b"".join(bytes(piece) for piece in pieces)
    assert len(sent) == size
    return sent


def input_sent(value: object, declared: str) -> bytes:
    """As a call puts it into shared memory."""
    blueprint = {"inputs": ["A"], "types": types("A", declared)}
    info = v1.FunctionInfo(name="f", inputs=["A"], config=json.dumps({"blueprint": blueprint}))
    pool = Pool()
    with _memory.arena_memfd(1 << 20) as descriptor:
        pool.opened(Mapped(descriptor, 1 << 20), 1, callers=False)
    prepared = Bound("f", Signature(info), pool, Options()).prepare([value], {})
    assert not isinstance(prepared, int)
    request = v1.Request.FromString(prepared.request)
    (item,) = request.invoke.inputs[0].items
    block = prepared.block
    return b"" if block is None else block.arena.memory[item.region.offset : item.region.offset + item.region.bytes]


def check(case: dict[str, Any], what: str, fits: bool, send: Any) -> None:
    if not fits:
        with pytest.raises(pappus.InvalidArgument) as caught:
            send()
        # Of a file that is what it should be, both types are named, and they differ.
        came, between, expected = caught.value.message.partition(" came, ")
        assert case["sent"] is None or (between and came != expected.split()[0]), what
        return
    assert send().hex() == case["sent"], what


def test_the_corpus_is_what_its_script_makes(tmp_path: Path) -> None:
    subprocess.run([sys.executable, CORPUS / "make.py", tmp_path], check=True)
    made = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    kept = {path.name: path.read_bytes() for path in CORPUS.iterdir() if path.name not in ("make.py", "__pycache__")}
    assert made == kept
    assert len(CASES) >= 60


def test_weights_are_taken_as_the_corpus_says(tmp_path: Path) -> None:
    for case, path, declared, fits in rows():
        check(case, f"{path.name} as {declared}", fits, lambda p=path, d=declared: weights_sent(p, d, tmp_path))


def test_inputs_are_taken_as_the_corpus_says() -> None:
    for case, path, declared, fits in rows():
        if path.suffix == ".bin":
            value: object = path.read_bytes()
        elif case["sent"] is None:
            continue
        else:
            value = _npy.read(path)
        check(case, f"{path.name} as {declared}", fits, lambda v=value, d=declared: input_sent(v, d))


def test_what_numpy_itself_reads_is_what_is_sent() -> None:
    compared = 0
    for case in CASES:
        if case["sent"] is not None and case["file"].endswith(".npy"):
            array = np.load(CORPUS / case["file"])
            assert array.astype(array.dtype.newbyteorder("<")).tobytes().hex() == case["sent"], case["file"]
            compared += 1
    assert compared > 30


def test_a_shape_of_weights_is_computed_as_far_as_no_call_is_needed(tmp_path: Path) -> None:
    def read(*shape: Any) -> None:
        blueprint = {
            "inputs": ["A"],
            "weights": ["W", "V"],
            "types": {"W": {"dtype": "f32", "shape": shape}, "A": {"dtype": "f32", "shape": [{"Free": "n"}]}},
        }
        config = tmp_path / "f.json"
        config.write_text(json.dumps({"module_path": "m.wasm", "kernels": [], "blueprint": blueprint}))
        weights = {"W": CORPUS / "matrix-le-rows.npy", "V": CORPUS / "vector-columns.npy"}
        _files.read(config, weights)

    three, two = {"CeilDiv": [{"Sizeof": "V"}, {"Absolute": 4}]}, {"Absolute": 2}
    read(two, three)
    with pytest.raises(pappus.InvalidArgument, match=r"f32\[2,3\] came, f32\[3,2\] is expected"):
        read(three, two)
    # A call says what n is; the rest is known.
    read(two, {"Free": "n"})
    with pytest.raises(pappus.InvalidArgument, match=r"f32\[2,3\] came, f32\[n,2\] is expected"):
        read({"Free": "n"}, two)
