"""Packaging: what needs PyTorch is collected only where it is installed (scripts/test-ecosystem installs it)."""

from __future__ import annotations

import importlib.util
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

if importlib.util.find_spec("torch") is None:
    collect_ignore = [
        "test_bench_models.py",
        "test_models.py",
        "test_kernels.py",
        "test_refusals.py",
        "test_expressions.py",
        "test_examples.py",
        "kernels.py",
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
