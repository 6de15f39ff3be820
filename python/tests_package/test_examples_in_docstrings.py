"""Examples in the docstrings of pappus.package run; what reads JAX's messages is imported where JAX is (tests_jax)."""

from __future__ import annotations

import doctest
import pkgutil
from importlib import import_module
from pathlib import Path

import pytest

import pappus.package

MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(pappus.package.__path__, "pappus.package.")
    if not module.name.startswith("pappus.package.xla_") and not module.name.endswith("__main__")
)


@pytest.mark.parametrize("name", ["pappus.package", *MODULES])
def test_examples_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    failed, _ = doctest.testmod(import_module(name))
    assert not failed


def test_there_are_examples() -> None:
    finder = doctest.DocTestFinder(exclude_empty=True)
    names = {test.name for name in ["pappus.package", *MODULES] for test in finder.find(import_module(name)) if test.examples}
    assert names >= {"pappus.package", "pappus.package.jit.array", "pappus.package.sizes", "pappus.package.targets.parse"}
