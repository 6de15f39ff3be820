"""Operations that can be computed in several ways: the candidates that a package carries, and the table that chose among them.

Front ends (:mod:`.candidates` for models, :mod:`.jit` for kernels) say which candidates an operation has; :mod:`.tune` times
them through a supervisor and writes the table.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from . import build, saved, sizes
from .errors import PackageError
from .files import CONFIG
from .plan import Launch, Plan
from .targets import Target
from .tune import FOLDER, POINTS, TABLE, written

# Launches of a candidate in one call: what a call costs by itself hardly counts.
REPEAT = 20
# Tables that come with Pappus, by the architecture that they were measured on.
_SHIPPED = Path(__file__).parent / "tiles"


@dataclass(frozen=True)
class Table:
    """What was measured: rows by device's model and by operation, and the device whose fastest ones are taken."""

    rows: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    device: str | None = None

    def fastest(self, operation: str) -> str | None:
        """The fastest of an operation's configurations; none where the operation was not measured."""
        row = self.rows[self.device].get(operation) if self.device is not None else None
        return str(row["choice"]) if row is not None else None

    def choice(self, operation: str, among: Collection[str]) -> str | None:
        """The same; none, too, with a warning, where the operation no longer has the one that was the fastest."""
        fastest = self.fastest(operation)
        if fastest is None or fastest in among:
            return fastest
        warnings.warn(
            f"{operation} does not get {fastest!r}, which was the fastest on {self.device}: it has no such configuration",
            stacklevel=2,
        )
        return None

    def files(self, operations: Iterable[str]) -> dict[str, bytes]:
        """The rows of these operations, on all devices, as a package carries them."""
        wanted = set(operations)
        kept = {
            device: {operation: dict(row) for operation, row in rows.items() if operation in wanted}
            for device, rows in self.rows.items()
        }
        kept = {device: rows for device, rows in kept.items() if rows}
        return {TABLE: written(kept)} if kept else {}


def read_table(path: str | os.PathLike[str] | None, device: str | None = None) -> Table:
    """Reads the table of a package (a folder or a ``.pappus`` file), or one that is a file of its own.

    ``device`` names the one measured on, where the table has several. Without a path, nothing was measured.
    """
    if path is None:
        return Table()
    path = Path(path)
    packed = path.is_dir() or path.suffix == saved.EXTENSION
    try:
        content = saved.read(path, TABLE) if packed else path.read_bytes()
        if content is None:
            raise PackageError(f"{path} was not tuned: it has no {TABLE}")
        rows = json.loads(content)
        for row in (row for table in rows.values() for row in table.values()):
            row["choice"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise PackageError(f"{path} is no table of measurements: {error}") from error
    if device is None and len(rows) == 1:
        device = next(iter(rows))
    if device not in rows:
        raise PackageError(f"{path} has measurements of {sorted(rows)}: say which with tuned_for=")
    return Table(rows, device)


def shipped(target: Target) -> Table:
    """What was measured for this release of Pappus on a GPU of this architecture; nothing where there was none."""
    path = _SHIPPED / f"{target.arch}.json"
    return read_table(path) if path.is_file() else Table()


def files(operations: Mapping[str, Mapping[str, Plan]], targets: Sequence[Target]) -> dict[str, bytes]:
    """What a package carries so that it can be tuned: of each operation, its candidates' plans by their names.

    A plan is one launch. One that cannot be built for a target is left out.
    """
    points = []
    made: dict[str, bytes] = {}
    for at, (operation, plans) in enumerate(operations.items()):
        points.append({"operation": operation, "candidates": list(plans)})
        # One module for all of them: making it ready on the device takes longer than timing one.
        numbered = [_renamed(plan, number) for number, plan in enumerate(plans.values())]
        for number, built in enumerate(build.build_together(numbered, targets)):
            if built is None:
                continue
            flow = built.document["blueprint"]["control_flow"]
            built.document["blueprint"]["control_flow"] = [{"Repeat": [sizes.absolute(REPEAT), flow]}]
            for module in built.document["modules"]:
                module["path"] = f"../{module['path']}"
            made |= {f"{FOLDER}/{at}/{path}": code for path, code in built.modules.items()}
            made[f"{FOLDER}/{at}/{number}/{CONFIG}"] = json.dumps(built.document, indent=1).encode()
    return {POINTS: json.dumps(points, indent=1).encode()} | made if points else {}


def _renamed(plan: Plan, number: int) -> Plan:
    """A candidate's plan with a name for its kernel that no other candidate of the operation has."""
    ((old, kernel),) = plan.kernels.items()
    name = f"{old}_{number}"
    steps = [replace(step, kernel=name) if isinstance(step, Launch) else step for step in plan.steps]
    return replace(plan, kernels={name: kernel}, steps=steps)
