"""Functions in one file: what is in a `.pappus` archive is as in a folder, and what should not be in one is refused."""

from __future__ import annotations

import stat
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pappus
from test_functions import A, write


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


@pytest.mark.parametrize("outside", [{"weight_files": {"W": "../secret.npy"}}, {"weight_files": {"W": "/etc/passwd"}}])
def test_a_strangers_configuration_names_nothing_outside(
    client: pappus.Client, tmp_path: Path, outside: dict[str, Any]
) -> None:
    np.save(tmp_path / "secret.npy", A)
    (tmp_path / "folder").mkdir()
    config = write(tmp_path / "folder", blueprint={"weights": ["W"]}, **outside)
    with zipfile.ZipFile(tmp_path / "f.pappus", "w") as archive:
        archive.write(config, "function.json")
        archive.write(tmp_path / "folder/linalg.wasm", "linalg.wasm")
    with pytest.raises(pappus.InvalidArgument, match="lies outside its folder"):
        client.add_function("packed", tmp_path / "f.pappus")


def link() -> zipfile.ZipInfo:
    info = zipfile.ZipInfo("link")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    return info


@pytest.mark.parametrize(
    ("member", "words"),
    [
        ("../out.json", "leads out of the folder"),
        ("/etc/out", "leads out of the folder"),
        ("a//b", "leads out of the folder"),
        ("a\\b", "leads out of the folder"),
        (link(), "is a link"),
    ],
)
def test_members_that_are_no_files_of_it_are_refused(
    client: pappus.Client, pack: Callable[..., Path], member: zipfile.ZipInfo | str, words: str
) -> None:
    with pytest.raises(pappus.InvalidArgument, match=words):
        client.add_function("packed", pack((member, b"x")))


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_archives_that_are_none_are_refused(client: pappus.Client, pack: Callable[..., Path]) -> None:
    def refused(path: Path, words: str) -> None:
        with pytest.raises(pappus.InvalidArgument, match=words):
            client.add_function("packed", path)

    refused(pack(("function.json", b"{}")), "comes twice")
    refused(pack(compression=zipfile.ZIP_DEFLATED), "is compressed")
    path = pack()
    whole = path.read_bytes()
    for cut in range(0, len(whole), max(1, len(whole) // 50)):
        path.write_bytes(whole[:cut])
        refused(path, "no archive")
    at = whole.index(b"\0asm") + 100
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    refused(path, "Bad CRC")
    path.unlink()
    refused(path, "No such file")
