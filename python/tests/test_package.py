"""The package itself: generated code is fresh, examples run, types are complete."""

from __future__ import annotations

import doctest
import importlib.metadata
import os
import pkgutil
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

import pappus
from fixture import REPOSITORY, Supervisor
from pappus._extras import install

MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(pappus.__path__, "pappus.")
    # Those of packaging and Ray run where PyTorch and Ray are (tests_package, tests_ray).
    if not module.name.startswith(("pappus._proto", "pappus.ray", "pappus.package"))
)


def test_generated_messages_are_those_of_the_protocol(tmp_path: Path) -> None:
    # The plugin of the compiler is installed beside the interpreter.
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path}
    subprocess.run([REPOSITORY / "python/generate", "--check", tmp_path], env=environment, check=True)
    for name in ("pappus_pb2.py", "pappus_pb2.pyi"):
        committed = Path(pappus.__path__[0]) / "_proto" / name
        assert (tmp_path / name).read_text() == committed.read_text(), "run python/generate"


def examples(supervisor: Supervisor, client: pappus.Client) -> dict[str, object]:
    for info in client.functions():
        if info.name != "vec_add":
            client.remove_function(info.name)
    os.environ["PAPPUS_SOCKET"] = supervisor.path
    return {"client": client, "np": np, "pappus": pappus, "socket": supervisor.path}


@pytest.mark.parametrize("name", ["pappus", *MODULES])
def test_examples_in_docstrings_run(name: str, supervisor: Supervisor, client: pappus.Client, vec_add: object) -> None:
    failed, _ = doctest.testmod(import_module(name), extraglobs=examples(supervisor, client))
    assert not failed


def test_examples_in_the_manual_run(
    supervisor: Supervisor, client: pappus.Client, vec_add: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(REPOSITORY)
    page = REPOSITORY / "docs/python.md"
    failed, ran = doctest.testfile(str(page), module_relative=False, globs=examples(supervisor, client))
    assert ran > 10
    assert not failed


def test_the_package_says_that_it_is_typed() -> None:
    assert (Path(pappus.__path__[0]) / "py.typed").is_file()


def test_the_package_carries_its_license() -> None:
    installed = importlib.metadata.distribution("pappus")
    files = [file for file in installed.files or () if file.name == "LICENSE"]
    assert [Path(str(file.locate())).read_text() for file in files] == [(REPOSITORY / "LICENSE").read_text()]
    assert installed.metadata["License-Expression"] == "Apache-2.0"


def test_the_pythons_it_names_are_those_that_are_tested() -> None:
    project = (REPOSITORY / "python/pyproject.toml").read_text()
    named = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', project)
    script = (REPOSITORY / "scripts/ecosystem/pythons").read_text()
    tested = re.search(r"^versions=\((.*)\)$", script, re.M)
    assert tested is not None
    assert tested.group(1).split() == [named[0], named[-1]]
    assert f'requires-python = ">={named[0]}"' in project


def test_what_is_to_be_installed_can_be() -> None:
    """Messages name extras that there are; nothing says that a package index has the package."""
    extras = (REPOSITORY / "python/pyproject.toml").read_text().partition("[project.optional-dependencies]")[2]
    files = [*(REPOSITORY / "python/src").rglob("*.py"), *(REPOSITORY / "docs").rglob("*.md"), REPOSITORY / "README.md"]
    texts = {path: path.read_text() for path in files}
    named = [name for text in texts.values() for name in re.findall(r"""install\(['"](\w+)['"]\)""", text)]
    assert len(named) > 3
    for name in named:
        assert f"\n{name} = [" in extras
        assert install(name).startswith(f"in Pappus' sources, pip install './python[{name}]'")
    for path, text in texts.items():
        assert not re.search(r"pip install '?pappus", text), path
