"""Tuning: candidates are timed through the command, and the fastest ones stand in the table."""

from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path

import pytest

from pappus.package import PackageError, points, saved
from pappus.package.__main__ import main
from pappus.package.tune import TABLE, tune

# Answers as the command does: the candidate in folder tuning/P/C takes 1000 / (C + 1) ns on the device cuda:0.
COMMAND = """
import json, pathlib, sys
log = pathlib.Path({log!r})
arguments = sys.argv[1:]
with log.open("a") as out:
    out.write(" ".join(arguments[:3]) + "\\n")
if arguments[0] == "status":
    print(json.dumps({{"devices": [{{"name": "cuda:0", "description": "A GPU"}}, {{"name": "cpu", "description": ""}}]}}))
elif arguments[0] == "invoke":
    candidate = int(arguments[1].split("-")[2])
    if candidate == 9:
        print("error: KERNEL_FAULT", file=sys.stderr)
        sys.exit(4)
    print(json.dumps({{"device": "cuda:0", "latency": {{"execute_ns": {{"p50": 1000 // (candidate + 1)}}}}}}))
"""


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    script = tmp_path / "command.py"
    script.write_text(COMMAND.format(log=str(tmp_path / "log")))
    return [sys.executable, str(script)]


def package(folder: Path, candidates: dict[str, list[int]]) -> Path:
    points = [{"operation": name, "candidates": [f"tile {n}" for n in range(10)]} for name in candidates]
    for at, present in enumerate(candidates.values()):
        for number in present:
            file = folder / "tuning" / str(at) / str(number) / "function.json"
            file.parent.mkdir(parents=True)
            file.write_text("{}")
    (folder / "tuning").mkdir(parents=True, exist_ok=True)
    (folder / "tuning/points.json").write_text(json.dumps(points))
    return folder


def test_the_fastest_candidates_stand_in_the_table(tmp_path: Path, command: list[str]) -> None:
    made = package(tmp_path / "p", {"mm": [0, 1, 3], "conv": [0]})
    found = tune(made, "cuda:0", command=command)
    assert found["mm"] == {"choice": "tile 3", "execute_ns": 250.0, "candidates": 3}
    assert found["conv"]["choice"] == "tile 0"
    assert json.loads((made / TABLE).read_text()) == {"A GPU": found}
    log = (tmp_path / "log").read_text().splitlines()
    assert len([line for line in log if line.startswith("function add")]) == 4
    assert len([line for line in log if line.startswith("function remove")]) == 4


def packed(folder: Path, file: Path) -> Path:
    """The same package as one file."""
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(saved.info("function.json"), b"{}")
        archive.writestr(saved.info("weights/w.npy"), b"w" * 5000)
        for member in sorted(path for path in folder.rglob("*") if path.is_file()):
            archive.writestr(saved.info(str(member.relative_to(folder))), member.read_bytes())
    return file


def test_a_file_gets_its_table_as_a_folder_does(tmp_path: Path, command: list[str]) -> None:
    made = packed(package(tmp_path / "p", {"mm": [0, 1, 3]}), tmp_path / "p.pappus")
    made.chmod(0o640)
    for _ in range(2):
        found = tune(made, "cuda:0", command=command)
        assert found["mm"]["choice"] == "tile 3"
        with zipfile.ZipFile(made) as archive:
            names = archive.namelist()
            assert len(names) == len(set(names)) == 7
            assert names[0] == "function.json"
            assert names[-1] == TABLE
            assert json.loads(archive.read(TABLE)) == {"A GPU": found}
            assert archive.read("weights/w.npy") == b"w" * 5000
            assert {one.compress_type for one in archive.infolist()} == {zipfile.ZIP_STORED}
    assert made.stat().st_mode & 0o777 == 0o640
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_file_that_is_no_archive_is_told_and_stays(tmp_path: Path, command: list[str]) -> None:
    wrong = tmp_path / "p.pappus"
    wrong.write_bytes(b"no archive")
    with pytest.raises(PackageError, match="is no package"):
        tune(wrong, "cuda:0", command=command)
    with pytest.raises(PackageError, match="is no package"):
        saved.replace(wrong, TABLE, b"{}")
    assert wrong.read_bytes() == b"no archive"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["command.py", "p.pappus"]


def test_tables_are_read_from_wherever_they_lie(tmp_path: Path, command: list[str]) -> None:
    folder = package(tmp_path / "p", {"mm": [0, 3], "conv": [1]})
    file = packed(folder, tmp_path / "p.pappus")
    with pytest.raises(PackageError, match="was not tuned"):
        points.read_table(file)
    for made in (folder, file):
        tune(made, "cuda:0", command=command)
    for path in (folder, file, folder / TABLE):
        table = points.read_table(path)
        tiles = ["tile 1", "tile 3"]
        assert [table.choice(name, tiles) for name in ("mm", "conv", "other")] == ["tile 3", "tile 1", None]
        with pytest.warns(UserWarning, match="mm does not get 'tile 3', which was the fastest on A GPU"):
            assert table.choice("mm", ["tile 1"]) is None
    assert points.read_table(None).choice("mm", ["tile 1"]) is None


def test_a_package_takes_along_what_is_about_its_operations(tmp_path: Path) -> None:
    row = {"choice": "tile 1", "execute_ns": 5.0, "candidates": 2}
    file = tmp_path / "table.json"
    file.write_text(json.dumps({"A": {"mm": row, "conv": row}, "B": {"conv": row}}))
    with pytest.raises(PackageError, match="tuned_for"):
        points.read_table(file)
    table = points.read_table(file, "A")
    assert json.loads(table.files(["mm", "new"])[TABLE]) == {"A": {"mm": row}}
    assert json.loads(table.files(["conv"])[TABLE]) == {"A": {"conv": row}, "B": {"conv": row}}
    assert table.files(["new"]) == {}
    assert points.read_table(file, "B").choice("mm", ["tile 1"]) is None


def test_tables_of_several_devices_stay(tmp_path: Path, command: list[str]) -> None:
    made = package(tmp_path / "p", {"mm": [0, 1]})
    (made / TABLE).write_text(json.dumps({"Another GPU": {"mm": {"choice": "tile 7"}}}))
    tune(made, "cuda:0", command=command)
    assert set(json.loads((made / TABLE).read_text())) == {"A GPU", "Another GPU"}


def test_a_candidate_that_does_not_run_is_left_out(tmp_path: Path, command: list[str]) -> None:
    said: list[str] = []
    found = tune(package(tmp_path / "p", {"mm": [0, 9]}), "cuda:0", command=command, say=said.append)
    assert found["mm"] == {"choice": "tile 0", "execute_ns": 1000.0, "candidates": 1}
    assert "left out: tile 9" in said[0]
    assert "KERNEL_FAULT" in said[0]
    log = (tmp_path / "log").read_text()
    assert "function remove tune-0-0" in log
    assert "function remove tune-0-9" in log


def test_what_goes_wrong_is_told(tmp_path: Path, command: list[str]) -> None:
    made = package(tmp_path / "p", {"mm": [0, 1]})
    with pytest.raises(PackageError, match="no device hip:0, it has cpu, cuda:0"):
        tune(made, "hip:0", command=command)
    with pytest.raises(PackageError, match="ran on cuda:0, not on cpu"):
        tune(made, "cpu", command=command)
    with pytest.raises(PackageError, match="KERNEL_FAULT"):
        tune(package(tmp_path / "q", {"mm": [9]}), "cuda:0", command=command)
    assert (tmp_path / "log").read_text().count("function remove tune-0-9") == 1
    with pytest.raises(PackageError, match="there is no package"):
        tune(tmp_path / "absent", "cuda:0", command=command)


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", str(tmp_path), "--pappus", "/nonexistent/pappus"]) == 3
    assert "nothing to tune" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([])
