"""Tuning: candidates are timed through the command, and the fastest ones stand in the table."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from pappus.package import PackageError
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
    with pytest.raises(PackageError, match="nothing to tune"):
        tune(tmp_path / "absent", "cuda:0", command=command)


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", str(tmp_path), "--pappus", "/nonexistent/pappus"]) == 3
    assert "nothing to tune" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([])
