"""Times a package's candidates through a supervisor, and writes what was found into the package.

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

from . import saved
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
    """Times every candidate and writes the table into the package; returns the part of it that is about this device.

    ``package`` is a folder or a ``.pappus`` file, made with candidates. Of each candidate the median of ``repeat`` calls
    counts. One that the device cannot run is left out; an operation of which none runs is an error.

    ``device`` is what the supervisor calls it, such as ``cuda:0``: a candidate that ran elsewhere is an error. Tables are
    kept by the device's model, so that one package can be tuned for several.
    """
    if not package.exists():
        raise PackageError(f"there is no package {package}")
    points = _read(package, POINTS)
    if points is None:
        raise PackageError(f"{package} has nothing to tune: make it with candidates=8")
    model = _model(device, command)
    found: dict[str, Any] = {}
    with saved.unpacked(package, FOLDER) as folder:
        for at, point in enumerate(points):
            own = folder / FOLDER / str(at)
            folders = {choice: own / str(number) for number, choice in enumerate(point["candidates"])}
            present = {choice: made for choice, made in folders.items() if (made / "function.json").is_file()}
            times = _times(present, f"tune-{at}", device, command, repeat, say)
            if times:
                best = min(times, key=lambda choice: times[choice])
                found[point["operation"]] = {"choice": best, "execute_ns": times[best], "candidates": len(times)}
                slowest = max(times.values())
                say(f"{at + 1}/{len(points)} {point['operation']}: {times[best] / 1000:.1f} us, slowest {slowest / 1000:.1f}")
    known = _read(package, TABLE) or {}
    known[model] = found
    saved.replace(package, TABLE, written(known))
    return found


def written(table: Mapping[str, Any]) -> bytes:
    """A table as packages have it."""
    return json.dumps(table, indent=1, sort_keys=True).encode()


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


def _read(package: Path, member: str) -> Any:
    content = saved.read(package, member)
    if content is None:
        return None
    try:
        return json.loads(content)
    except ValueError as error:
        raise PackageError(f"{package}: {member}: {error}") from error
