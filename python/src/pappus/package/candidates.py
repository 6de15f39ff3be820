"""The tile configurations that a matrix product or convolution could have, each as a function of its own, to be timed.

:mod:`.tune` times them through a supervisor and writes a table; a package made with that table has the fastest ones.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from . import build, choose, precision, sizes
from .errors import PackageError
from .files import CONFIG
from .plan import KernelSource, Launch, Plan, Pointer
from .targets import Target
from .tune import FOLDER, POINTS, TABLE

# Launches of a candidate in one call: what a call costs by itself hardly counts.
REPEAT = 20


@dataclass
class Choices:
    """Decides which configuration each operation gets: the measured one, else that with the shortest estimate."""

    target: Target
    shared_bytes: int
    table: Mapping[str, str] = field(default_factory=dict)
    # How many candidates are kept of each operation.
    keep: int = 0
    # How float32 is multiplied.
    float32: str = precision.AS_TOLD
    kept: dict[str, dict[str, Plan]] = field(default_factory=dict)

    def pick(self, choices: list[Any]) -> list[Any]:
        """Inductor's hook: of all choices for one operation those to go on with, here one."""
        templates = [choice for choice in choices if getattr(choice, "bmreq", None) is not None]
        if not templates:
            return choices
        key = key_of(templates[0], self.float32)

        def time(choice: Any) -> float:
            return choose.estimate(choice, self.target, self.shared_bytes)

        best = sorted(templates, key=time)
        if self.keep and key not in self.kept:
            simple = [choice for choice in best if not getattr(choice.bmreq, "workspace_size", None)]
            self.kept[key] = {choice.description: _alone(choice, self.float32) for choice in simple[: self.keep]}
        measured = next((choice for choice in templates if choice.description == self.table.get(key)), None)
        return [measured or best[0]]

    def files(self, targets: Sequence[Target]) -> dict[str, bytes]:
        """What a package carries so that it can be tuned."""
        points = []
        files: dict[str, bytes] = {}
        for at, (key, plans) in enumerate(self.kept.items()):
            points.append({"operation": key, "candidates": list(plans)})
            # One module for all of them: making it ready on the device takes longer than timing one.
            numbered = [_renamed(plan, number) for number, plan in enumerate(plans.values())]
            for number, built in enumerate(build.build_together(numbered, targets)):
                if built is None:
                    continue
                flow = built.document["blueprint"]["control_flow"]
                built.document["blueprint"]["control_flow"] = [{"Repeat": [sizes.absolute(REPEAT), flow]}]
                for module in built.document["modules"]:
                    module["path"] = f"../{module['path']}"
                files |= {f"{FOLDER}/{at}/{path}": code for path, code in built.modules.items()}
                files[f"{FOLDER}/{at}/{number}/{CONFIG}"] = json.dumps(built.document, indent=1).encode()
        return {POINTS: json.dumps(points, indent=1).encode()} | files if points else {}


def _renamed(plan: Plan, number: int) -> Plan:
    """A candidate's plan with a name for its kernel that no other candidate of the operation has."""
    ((old, kernel),) = plan.kernels.items()
    name = f"{old}_{number}"
    steps = [replace(step, kernel=name) if isinstance(step, Launch) else step for step in plan.steps]
    return replace(plan, kernels={name: kernel}, steps=steps)


def read_table(path: str | os.PathLike[str] | None, device: str | None = None) -> dict[str, str]:
    """The fastest configuration of every operation that was measured; ``path`` is a package's folder or a table.

    ``device`` names the one measured on, where the table has several.
    """
    if path is None:
        return {}
    path = Path(path)
    file = path / TABLE if path.is_dir() else path
    try:
        tables = json.loads(file.read_text())
        found = {name: {key: row["choice"] for key, row in table.items()} for name, table in tables.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise PackageError(f"{file} is no table of measurements: {error}") from error
    if device is None and len(found) == 1:
        return next(iter(found.values()))
    if device not in found:
        raise PackageError(f"{file} has measurements of {sorted(found)}: say which with tuned_for=")
    return found[device]


def key_of(choice: Any, float32: str) -> str:
    """An operation: its name, element types and shapes; and how it multiplies, where these are float32."""
    metas = choice.bmreq.input_tensor_meta
    metas = metas if isinstance(metas, list | tuple) else [metas]
    arrays = [*metas, choice.bmreq.output_tensor_meta]
    shown = [f"{str(a.dtype).removeprefix('torch.')}{list(map(int, a.sizes))}{list(map(int, a.strides))}" for a in arrays]
    how = precision.told(float32, tf32="ALLOW_TF32=False" not in choice.description)
    return " ".join([choice.name.rsplit("_", 1)[0], *shown, *([how] if "float32" in shown[0] else [])])


def _alone(choice: Any, float32: str) -> Plan:
    """One launch of a choice on zeros."""
    from torch._inductor.codecache import PyCodeCache
    from torch._inductor.runtime.triton_heuristics import GridExpr

    request = choice.bmreq
    module = PyCodeCache.load_by_key_path(request.module_cache_key, request.module_path)
    tuner = getattr(module, request.kernel_name)
    if hasattr(tuner, "result"):
        tuner = tuner.result()
    tuner.precompile()
    compiled = tuner.compile_results[0]
    source = compiled.kernel
    kernel = KernelSource(
        source.src.fn, dict(source.src.signature), dict(source.src.constants), dict(source.src.attrs), source.options, float32
    )
    metas = request.input_tensor_meta
    metas = list(metas) if isinstance(metas, list | tuple) else [metas]
    plan = Plan(outputs=["out"], kernels={request.kernel_name: kernel})
    pointers = []
    for at, meta in enumerate([*metas, request.output_tensor_meta]):
        name = "out" if at == len(metas) else f"in{at}"
        extent = 1 + sum((int(s) - 1) * int(st) for s, st in zip(meta.sizes, meta.strides, strict=True))
        plan.buffers[name] = sizes.absolute((extent + int(meta.offset)) * meta.dtype.itemsize)
        pointers.append(Pointer(name, sizes.absolute(int(meta.offset) * meta.dtype.itemsize)))
    extra = list(tuner.inductor_meta.get("extra_launcher_args", ()))
    values = [*pointers, *request.extra_args]
    given, behind = values[: len(values) - len(extra)], values[len(values) - len(extra) :]
    scope = dict(zip(extra, behind, strict=True))
    blocks = GridExpr.from_meta(tuner.inductor_meta, compiled.config).eval_slow({**compiled.config.kwargs, **scope})
    passed = [name for name in kernel.signature if name not in compiled.config.kwargs]
    named = dict(zip(passed, given, strict=True))
    arguments = {
        name: value if isinstance(value, Pointer | float) else int(value)
        for name, value in named.items()
        if kernel.signature[name] != "constexpr"
    }
    x, y, z = (sizes.absolute(int(count)) for count in blocks)
    plan.steps.append(Launch(request.kernel_name, arguments, (x, y, z)))
    return plan
