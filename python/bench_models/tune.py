"""Times all models' candidates on a device: ``python3 -m bench_models.tune DIR --device cuda:0 --out TABLE``.

One table for all of them, small enough to be carried back: :mod:`.make` takes it with ``--tuning``. PyTorch is not needed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pappus.package import PackageError
from pappus.package.tune import POINTS, TABLE, tune

from . import serving


def joined(tables: Sequence[dict[str, dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Tables of several packages as one: by GPU, then by operation."""
    found: dict[str, dict[str, Any]] = {}
    for table in tables:
        for gpu, operations in table.items():
            found.setdefault(gpu, {}).update(operations)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Tunes the packages of a folder, one after the other."""
    parser = argparse.ArgumentParser(prog="python3 -m bench_models.tune", description=__doc__)
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--device", default="cuda:0", help="cuda:0 or hip:0, without settings")
    parser.add_argument("--programs", type=Path, default=Path("target/gpu"), help="where pappus and pappus-supervisor are")
    parser.add_argument("--repeat", type=int, default=15, metavar="N", help="calls of each candidate (15)")
    parser.add_argument("--out", type=Path, default=Path("target/gpu-models-tuning.json"), help="the table")
    parser.add_argument("--log", type=Path, default=Path("target/gpu-models-tuning.log"), help="the supervisor's log")
    given = parser.parse_args(arguments)
    packages = sorted(path.parents[1] for path in given.folder.glob(f"*/{POINTS}"))
    if not packages:
        print(f"nothing to tune in {given.folder}: make its packages with --candidates", file=sys.stderr)
        return 3
    tables: list[dict[str, dict[str, Any]]] = []
    failed = 0
    with serving.supervisor(given.programs, f"{given.device}:workers=1,memory=16GiB", given.log) as served:
        for package in packages:
            start = time.monotonic()
            print(package.name, flush=True)
            say = lambda line: print(f"  {line}", flush=True)  # noqa: E731
            try:
                tune(package, given.device, command=served.command, repeat=given.repeat, say=say)
            except PackageError as error:
                print(f"FAILED {package.name}: {error}", file=sys.stderr, flush=True)
                failed += 1
                continue
            tables.append(json.loads((package / TABLE).read_text()))
            # After each, so that what is known stays if this is ended.
            given.out.write_text(json.dumps(joined(tables), indent=1, sort_keys=True) + "\n")
            print(f"  ({time.monotonic() - start:.0f} s)", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
