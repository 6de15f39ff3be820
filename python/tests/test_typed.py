"""Free dimensions: their values come with the call."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pappus
from fixture import KERNELS, pretender
from pappus import v1
from test_wire import greet, receive, reply

A = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture
def typed(client: pappus.Client, tmp_path: Path) -> pappus.Function:
    """Copies rows of any number and of any width."""
    free = [{"Free": "rows"}, {"Free": "width"}]
    blueprint = {
        "inputs": ["X", "Y"],
        "buffers": {"Z": {"Product": [{"Absolute": 4}, *free]}},
        "outputs": ["Z"],
        "types": {
            "X": {"dtype": "f32", "shape": free},
            "Y": {"dtype": "f32", "shape": [{"Free": "width"}]},
            "Z": {"dtype": "f32", "shape": free},
        },
        "control_flow": [{"Copy": {"from": "X", "to": "Z"}}],
    }
    config = {"module_path": str(KERNELS / "built/module.wasm"), "kernels": [], "blueprint": blueprint}
    (tmp_path / "typed.json").write_text(json.dumps(config))
    return client.add_function("typed", tmp_path, replace=True)


def test_dimensions_are_those_of_the_arrays(typed: pappus.Function) -> None:
    for rows in (1, 2, 5):
        x = np.full((rows, 3), rows, np.float32)
        np.testing.assert_array_equal(typed(x, x[0]), x)
    assert typed(A[:, :0], A[0, :0]).shape == (2, 0)


def test_dimensions_that_differ_are_refused(typed: pappus.Function) -> None:
    with pytest.raises(pappus.InvalidArgument, match="dimension 'width' is 2 here and 3 before it"):
        typed(A, A[0, :2])
    with pytest.raises(pappus.InvalidArgument, match=r"f32\[6\] came, f32\[rows,width\] is expected"):
        typed(A.reshape(-1), A[0])


def test_a_grantee_knows_what_is_declared_and_sends_what_is_free() -> None:
    def shape(*dims: v1.Dimension) -> v1.DeclaredShape:
        return v1.DeclaredShape(dimensions=dims)

    rows, three = v1.Dimension(free="rows"), v1.Dimension(fixed=3)
    info = v1.FunctionInfo(
        name="acme/f",
        granted=True,
        inputs=["A"],
        input_types=[v1.DeclaredType(dtype="f32", shape=shape(rows, three))],
        outputs=[
            v1.OutputInfo(name="B", dtype="f32", shape=shape(rows)),
            v1.OutputInfo(name="C", dtype="f32", shape=shape(v1.Dimension(computed=""))),
        ],
    )
    calls: list[v1.Invoke] = []

    def invoked(peer: socket.socket) -> None:
        request = receive(peer)
        calls.append(request.invoke)
        values: list[Any] = [("B", 8, [2]), ("C", 4, [1])]
        outputs = [v1.OutputValue(name=name, bytes=size, dtype="f32", shape=dims) for name, size, dims in values]
        answer = v1.Response(id=request.id, invoked=v1.Invoked(outputs=outputs)).SerializeToString()
        peer.sendall(len(answer).to_bytes(4, "little") + bytes(4) + answer)

    opened = v1.ArenaOpened(arena=1, bytes=1 << 20)
    with pretender(greet, reply(function=info), reply(arena=opened), invoked) as path, pappus.connect(path) as client:
        function = client.function("acme/f")
        assert str(function) == "<Function acme/f: A: f32[rows, 3] → B: f32[rows], C: f32[…]>"
        result = function(A)
        assert (result["B"].shape, result["C"].shape) == ((2,), (1,))
    (call,) = calls
    assert (call.inputs[0].type.dtype, list(call.inputs[0].type.shape)) == ("f32", [2, 3])
    assert [output.region.bytes for output in call.outputs] == [8, 64 << 20]
