"""Functions in one file: what is in a `.pappus` archive is as in a folder, and what should not be in one is refused."""

from __future__ import annotations

import json
import os
import runpy
import stat
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import pappus
from fixture import KERNELS
from pappus import _archive, _files
from pappus.package.tune import FOLDER, POINTS
from test_functions import A, write

# Archives that both clients must judge alike.
PACKAGES = KERNELS.parent / "tests/packages"


@pytest.fixture
def pack(tmp_path: Path) -> Callable[..., Path]:
    """Makes an archive of a function, with further members."""
    folder = tmp_path / "folder"
    folder.mkdir()
    write(folder)

    def make(*more: tuple[zipfile.ZipInfo | str, bytes], compression: int = zipfile.ZIP_STORED) -> Path:
        path = tmp_path / "f.pappus"
        with zipfile.ZipFile(path, "w", compression) as archive:
            for file in sorted(folder.iterdir()):
                archive.write(file, file.name)
            for name, content in more:
                archive.writestr(name, content)
        return path

    return make


def test_an_archive_is_a_function(client: pappus.Client, pack: Callable[..., Path]) -> None:
    function = client.add_function("packed", pack(("folder/", b""), ("folder/readme.txt", b"more")))
    np.testing.assert_array_equal(function(A, A), 2 * A)
    client.remove_function("packed")


CASES = json.loads((PACKAGES / "cases.json").read_text())


def judge(path: Path) -> str | None:
    """Why a package is refused; nothing if it is taken, apart from what is not there."""
    try:
        with _archive.opened(path) as archive:
            assert archive is not None
            _files.read(path, {}, archive)
    except pappus.InvalidArgument as why:
        return None if "there is no file" in str(why) else str(why)
    return None


def judge_flips(content: bytes, mask: int) -> str:
    """For each byte, when it is changed: ``t`` where the package is taken, ``r`` where it is refused."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "f.pappus"
        letters = []
        for at in range(len(content)):
            changed = bytearray(content)
            changed[at] ^= mask
            path.write_bytes(changed)
            letters.append("t" if judge(path) is None else "r")
    return "".join(letters)


@pytest.mark.parametrize("case", CASES["cases"], ids=lambda case: case["file"])
def test_every_package_is_judged_as_by_the_command(case: dict[str, str]) -> None:
    why = judge(PACKAGES / case["file"])
    if "refused" not in case:
        assert why is None
        return
    assert why is not None
    assert case["refused"] in why
    # Names are written as JSON writes them.
    assert json.dumps(case.get("member", ""))[1:-1] in why


@pytest.mark.parametrize("file", CASES["flips"])
def test_every_changed_byte_is_judged_as_by_the_command(file: str) -> None:
    content = (PACKAGES / file).read_bytes()
    for mask, letters in zip(CASES["masks"], CASES["flips"][file], strict=True):
        assert judge_flips(content, mask) == letters
    assert {"t", "r"} == set("".join(CASES["flips"][file]))


def test_the_packages_are_what_their_script_makes() -> None:
    script = runpy.run_path(str(PACKAGES / "make.py"))
    made = script["cases"]()
    assert {f"{name}.pappus" for name in made.archives} == {path.name for path in PACKAGES.glob("*.pappus")}
    for name, content in made.archives.items():
        assert (PACKAGES / f"{name}.pappus").read_bytes() == content, name
    assert made.rows == CASES["cases"]


def test_what_programs_write_is_taken(tmp_path: Path) -> None:
    script = runpy.run_path(str(PACKAGES / "make.py"))
    with zipfile.ZipFile(tmp_path / "f.pappus", "w") as archive:
        for member in script["GOOD"]:
            archive.writestr(member.name.decode(), member.content)
    assert judge(tmp_path / "f.pappus") is None
    with zipfile.ZipFile(tmp_path / "g.pappus", "w") as archive:
        for member in script["GOOD"]:
            with archive.open(member.name.decode(), "w", force_zip64=True) as file:
                file.write(member.content)
    assert judge(tmp_path / "g.pappus") is None


def test_nothing_is_unpacked(client: pappus.Client, pack: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    path = pack()

    def never(*_: object, **__: object) -> None:
        raise AssertionError("a folder was made")

    monkeypatch.setattr(tempfile, "mkdtemp", never)
    client.add_function("packed", path)
    client.remove_function("packed")


def test_a_signal_leaves_nothing_of_tuning_behind(tmp_path: Path) -> None:
    package = tmp_path / "m.pappus"
    with zipfile.ZipFile(package, "w") as archive:
        archive.writestr(POINTS, json.dumps([{"operation": "o", "candidates": ["one"]}]))
        archive.writestr(f"{FOLDER}/0/0/function.json", "{}")
    says, never, temporary = tmp_path / "says", tmp_path / "never", tmp_path / "tmp"
    temporary.mkdir()
    for pipe in (says, never):
        os.mkfifo(pipe)
    # A command that has the device, says that it registers, and never ends.
    command = tmp_path / "pappus"
    status = json.dumps({"devices": [{"name": "cpu"}]})
    command.write_text(f"#!/bin/sh\n[ $1 = status ] && echo '{status}' && exit\necho $1 >{says}\nexec cat {never}\n")
    command.chmod(0o755)
    tuning = [sys.executable, "-m", "pappus.package", "tune", package, "--device", "cpu", "--pappus", command]
    with subprocess.Popen(tuning, env={**os.environ, "TMPDIR": str(temporary)}) as running:
        assert says.read_text() == "function\n"
        (folder,) = temporary.iterdir()
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        running.terminate()
    assert running.returncode == 128 + 15
    assert list(temporary.iterdir()) == []


def test_pipes_and_devices_are_no_packages_and_no_configurations(client: pappus.Client, tmp_path: Path) -> None:
    for name in ("pipe.pappus", "pipe.json"):
        os.mkfifo(tmp_path / name)
        with pytest.raises(pappus.InvalidArgument, match="not a regular file"):
            client.add_function("packed", tmp_path / name)
    (tmp_path / "zero.pappus").symlink_to("/dev/zero")
    with pytest.raises(pappus.InvalidArgument, match="not a regular file"):
        client.add_function("packed", tmp_path / "zero.pappus")
    with pytest.raises(pappus.InvalidArgument, match="not a regular file"):
        client.add_function("packed", "/dev/zero")
    (tmp_path / "large.json").write_bytes(b" " * ((4 << 20) + 1))
    with pytest.raises(pappus.InvalidArgument, match="it has more than 4194304 bytes"):
        client.add_function("packed", tmp_path / "large.json")
    with pytest.raises(pappus.InvalidArgument, match="No such file"):
        client.add_function("packed", tmp_path / "absent.pappus")
