"""Packaging of JAX's functions: collected only where JAX is installed (scripts/ecosystem/jax installs it)."""

from __future__ import annotations

import importlib.util
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

# There is no GPU, and nothing needs one: without this, JAX looks for it.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

if importlib.util.find_spec("jax") is None:
    collect_ignore = [
        "test_functions.py",
        "test_refusals.py",
        "test_targets.py",
        "test_thunks.py",
        "networks.py",
        "hlo.py",
        "gpu.py",
    ]

REPOSITORY = Path(__file__).resolve().parents[2]
PROGRAMS = Path(os.environ.get("PAPPUS_BIN_DIR", REPOSITORY / "target/debug"))


@pytest.fixture(scope="session")
def check() -> Callable[[Path], str]:
    """``pappus function check``: what it says of a package, which must be valid."""

    def run(path: Path) -> str:
        done = subprocess.run([PROGRAMS / "pappus", "function", "check", path], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run
