"""Packages as they are registered and called: one folder, one file, on the CPU device of a real supervisor."""

from __future__ import annotations

import json
import os
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


def seconds_of_processor(pid: int) -> float:
    """What a process has had of the processor, its threads and the children that it waited for included."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def test_adding_a_package_as_large_as_resnet18_takes_two_seconds_at_most(tmp_path: Path) -> None:
    base, random = vec_add(), np.random.default_rng(0)
    # Its weights: 102 arrays, 47 MB in all.
    weights = {f"W{at}": Weight(f"weights/W{at}.npy", random.random(115_000, np.float32)) for at in range(102)}
    document = json.loads(json.dumps(base.document))
    document["blueprint"]["weights"] = list(weights)
    document["weight_files"] = {name: weight.path for name, weight in weights.items()}
    path = Package(document, base.modules, weights, Plan(), ()).save(tmp_path / "large.pappus")
    assert path.stat().st_size > 46_000_000
    supervisor = Supervisor(device="cpu:workers=1,memory=64MiB")
    try:
        # Of the processor, not of the clock: others may use this machine meanwhile.
        before = seconds_of_processor(supervisor.process.pid) + seconds_of_processor(os.getpid())
        added = [PROGRAMS / "pappus", "--socket", supervisor.path, "function", "add", "large", path]
        subprocess.run(added, check=True, capture_output=True)
        taken = seconds_of_processor(supervisor.process.pid) + seconds_of_processor(os.getpid()) - before
        with supervisor.connect() as client:
            assert "large" in {info.name for info in client.functions()}
    finally:
        supervisor.stop()
    assert 0 < taken <= 2.0
