"""Packages as they are registered and called: one folder, one file, on the CPU device of a real supervisor."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import pappus
from fixture import PROGRAMS, REPOSITORY, Supervisor
from pappus.package import Package
from pappus.package.files import Weight
from pappus.package.plan import Plan


@pytest.fixture
def socket() -> Iterator[str]:
    """A supervisor that has nothing registered."""
    supervisor = Supervisor(device="cpu:workers=1,memory=64MiB")
    yield supervisor.path
    supervisor.stop()


def vec_add() -> Package:
    """A function with code for the CPU device, which the kernels of this repository have."""
    document = json.loads((REPOSITORY / "kernels/configs/vec_add.json").read_text())
    document["modules"][0]["path"] = "modules/linalg.wasm"
    document["blueprint"]["weights"] = ["W"]
    document["weight_files"] = {"W": "weights/W.npy"}
    code = (REPOSITORY / "kernels/built/linalg.wasm").read_bytes()
    weights = {"W": Weight("weights/W.npy", np.zeros(3, np.float32))}
    # What the command does not know must not disturb it.
    further = {"tuning/table.json": b"{}", "tuning/0/1/function.json": b"no JSON", "notes.txt": b"dear"}
    return Package(document, {"modules/linalg.wasm": code}, weights, Plan(), (), further)


@pytest.mark.parametrize("name", ["vec_add.pappus", "vec_add"])
def test_a_package_is_registered_as_it_is(name: str, socket: str, tmp_path: Path) -> None:
    path = vec_add().save(tmp_path / name)
    added = [PROGRAMS / "pappus", "--socket", socket, "function", "add", "vec_add", path]
    done = subprocess.run(added, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with pappus.connect(socket) as client:
        found = client.function("vec_add")(A=np.float32([1, 2, 3]), B=np.float32([10, 20, 30]))
    np.testing.assert_array_equal(found, [11, 22, 33])
