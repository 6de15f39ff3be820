"""Packages on disk: all or nothing, equal byte for byte, and what the command reads."""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest

from pappus.package import PackageError, targets
from pappus.package.files import Package, Weight
from pappus.package.plan import Plan


def small() -> Package:
    document = {"modules": [], "kernels": [], "weight_files": {"W": "weights/W.npy"}, "blueprint": {}}
    weights = {
        "W": Weight("weights/W.npy", np.arange(6, dtype=np.float32).reshape(2, 3)),
        "B": Weight("weights/B.bin", np.array(7, dtype=np.uint16)),
    }
    return Package(document, {"modules/kernels.sm_90a.cubin": b"code"}, weights, Plan(), targets.parse("sm_90"))


def test_a_file_and_a_folder_hold_the_same(tmp_path: Path) -> None:
    file = small().save(tmp_path / "f.pappus")
    folder = small().save(tmp_path / "f")
    with zipfile.ZipFile(file) as archive:
        names = archive.namelist()
        assert names[0] == "function.json"
        assert {info.compress_type for info in archive.infolist()} == {zipfile.ZIP_STORED}
        for name in names:
            assert (folder / name).read_bytes() == archive.read(name)
    assert len([path for path in folder.rglob("*") if path.is_file()]) == len(names) == 4
    assert json.loads((folder / "function.json").read_text()) == small().document
    assert np.load(folder / "weights/W.npy").tolist() == [[0, 1, 2], [3, 4, 5]]
    assert (folder / "weights/B.bin").read_bytes() == b"\x07\x00"
    assert file.read_bytes() == small().save(tmp_path / "g.pappus").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["f", "f.pappus", "g.pappus"]


def test_nothing_is_overwritten_unasked(tmp_path: Path) -> None:
    for name in ("f.pappus", "f"):
        small().save(tmp_path / name)
        with pytest.raises(PackageError, match="exists"):
            small().save(tmp_path / name)
        small().save(tmp_path / name, overwrite=True)
    other = tmp_path / "home"
    other.mkdir()
    (other / "letter").write_text("dear")
    with pytest.raises(PackageError, match="other things"):
        small().save(other, overwrite=True)
    assert (other / "letter").read_text() == "dear"


def test_targets_are_read() -> None:
    found = targets.parse(["gfx942", "sm_90", "cuda:sm_80", "hip:gfx90a", "sm_90"])
    assert [str(target) for target in found] == ["sm_80", "sm_90", "gfx90a", "gfx942"]
    assert [target.file_suffix for target in found] == [".sm_80.cubin", ".sm_90a.cubin", ".gfx90a.hsaco", ".gfx942.hsaco"]
    for wrong in ("sm90", "hip:sm_90", "cuda:gfx942", "cpu", ""):
        with pytest.raises(PackageError, match="is no target"):
            targets.parse([wrong])
    with pytest.raises(PackageError, match="no target"):
        targets.parse([])


def test_supported_releases_are_those_that_are_tested() -> None:
    root = Path(__file__).resolve().parents[2]
    script = (root / "scripts/ecosystem/torch").read_text()
    source = (root / "python/src/pappus/package/lowering.py").read_text()
    tested = re.search(r"^releases=\((.*)\)$", script, re.M)
    named = re.search(r"^SUPPORTED = \((.*)\)$", source, re.M)
    assert tested is not None
    assert named is not None
    minors = {release.rsplit(".", 1)[0] for release in tested.group(1).split()}
    assert minors == set(re.findall(r'"([\d.]+)"', named.group(1)))
