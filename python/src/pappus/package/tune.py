"""Times a package's candidates through a supervisor, and writes what was found beside them.

A program of its own beside ``pappus``, and in Python: it comes with what makes packages, needs nothing of the supervisor
but what every client may do (register, call, remove), and runs where the GPU is, which need not have PyTorch. It calls
the ``pappus`` command.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .errors import PackageError

FOLDER = "tuning"
POINTS = f"{FOLDER}/points.json"
TABLE = f"{FOLDER}/table.json"

# Exit codes of the command where the supervisor refused, and where a call failed.
_FAILED = (3, 4)

Say = Callable[[str], None]


class _Failed(PackageError):
    """What is wrong is the candidate."""


def tune(
    package: Path,
    device: str,
    *,
    command: Sequence[str] = ("pappus",),
    repeat: int = 30,
    say: Say = lambda _: None,
) -> dict[str, Any]:
    """Times every candidate and writes the table; returns the part of it that is about this device.

    A candidate that the device cannot run is left out; an operation of which none runs is an error.

    ``device`` is what the supervisor calls it, such as ``cuda:0``: a candidate that ran elsewhere is an error. Tables are
    kept by the device's model, so that one package can be tuned for several.
    """
    points = _read(package / POINTS, f"{package} has nothing to tune: make it with candidates=8, as a folder")
    model = _model(device, command)
    found: dict[str, Any] = {}
    for at, point in enumerate(points):
        folders = [(choice, package / FOLDER / str(at) / str(number)) for number, choice in enumerate(point["candidates"])]
        present = {choice: folder for choice, folder in folders if (folder / "function.json").is_file()}
        times = _times(present, f"tune-{at}", device, command, repeat, say)
        if times:
            best = min(times, key=lambda choice: times[choice])
            found[point["operation"]] = {"choice": best, "execute_ns": times[best], "candidates": len(times)}
            slowest = max(times.values())
            say(f"{at + 1}/{len(points)} {point['operation']}: {times[best] / 1000:.1f} us, slowest {slowest / 1000:.1f}")
    table = package / TABLE
    known = _read(table, "") if table.exists() else {}
    known[model] = found
    written = table.with_suffix(".new")
    written.write_text(json.dumps(known, indent=1, sort_keys=True))
    written.replace(table)
    return found


def _times(
    folders: Mapping[str, Path], name: str, device: str, command: Sequence[str], repeat: int, say: Say
) -> dict[str, float]:
    """The medians of the time on the device; of those that run on it at all."""
    times: dict[str, float] = {}
    added: list[str] = []
    why: PackageError | None = None
    try:
        for choice, folder in folders.items():
            function = f"{name}-{folder.name}"
            try:
                _run(command, "function", "add", function, str(folder), "--replace")
                # They have one module, which is kept as long as a function has it.
                added.append(function)
                answer = _run(command, "invoke", function, "--repeat", str(repeat), "--json")
            except _Failed as error:
                why = error
                say(f"left out: {choice}: {error}")
                continue
            if answer["device"] != device:
                raise PackageError(
                    f"{function} ran on {answer['device']}, not on {device}: start a supervisor with this device only"
                )
            times[choice] = float(answer["latency"]["execute_ns"]["p50"])
    finally:
        for function in added:
            _run(command, "function", "remove", function)
    if why and not times:
        raise why
    return times


def _model(device: str, command: Sequence[str]) -> str:
    """The device's name, such as that of a GPU; what the supervisor calls it where it tells no name."""
    status = _run(command, "status", "--json")
    devices = {one["name"]: one for one in status.get("devices", [])}
    if device not in devices:
        raise PackageError(f"the supervisor has no device {device}, it has {', '.join(sorted(devices)) or 'none'}")
    return str(devices[device].get("description") or device)


def _run(command: Sequence[str], *arguments: str) -> Any:
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        kind = _Failed if done.returncode in _FAILED else PackageError
        raise kind(f"pappus {' '.join(arguments[:2])}: {done.stderr.strip()}")
    return json.loads(done.stdout) if "--json" in arguments else None


def _read(path: Path, otherwise: str) -> Any:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError as error:
        raise PackageError(otherwise) from error
    except ValueError as error:
        raise PackageError(f"{path}: {error}") from error
