"""``python -m pappus.package tune PACKAGE``: what is done to packages where the GPU is. ``pappus package`` runs it."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from pathlib import Path

from .errors import PackageError
from .tune import TABLE, tune


def main(arguments: list[str] | None = None) -> int:
    """Runs a command; its exit code is that of ``pappus``: 3 where nothing could be done."""
    parser = argparse.ArgumentParser(prog="python -m pappus.package", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    tuning = commands.add_parser("tune", help="time a package's candidates on a device and write a table into it")
    tuning.add_argument("package", type=Path, metavar="PACKAGE", help="a folder or a .pappus file, made with candidates=N")
    tuning.add_argument("--device", default="cuda:0", help="the supervisor's device to measure on (cuda:0)")
    tuning.add_argument("--socket", help="the supervisor's socket (PAPPUS_SOCKET)")
    tuning.add_argument("--pappus", default="pappus", help="the pappus command")
    tuning.add_argument("--repeat", type=int, default=30, metavar="N", help="calls of each candidate (30)")
    tuning.add_argument(
        "--json", action="store_true", help="print what was found as one JSON object; what is being done on stderr"
    )
    given = parser.parse_args(arguments)
    command = [given.pappus, *(["--socket", given.socket] if given.socket else [])]

    def say(line: str) -> None:
        print(line, file=sys.stderr if given.json else sys.stdout, flush=True)

    try:
        found = tune(given.package, given.device, command=command, repeat=given.repeat, say=say)
    except (PackageError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 3
    if given.json:
        print(json.dumps({"device": given.device, "operations": found}))
        return 0
    where = f"{TABLE} in {given.package}"
    print(f"{len(found)} operations measured: {where}; make the package again with tuning={str(given.package)!r}")
    return 0


if __name__ == "__main__":
    # As an error does: what is kept in temporary folders is removed.
    for ending in (signal.SIGHUP, signal.SIGTERM):
        signal.signal(ending, lambda number, _: sys.exit(128 + number))
    sys.exit(main())
