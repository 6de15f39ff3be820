"""The tile configurations that a model's matrix product or convolution could have, each a function of its own, to be timed.

Inductor asks here which of them it goes on with; :mod:`.points` has what a package carries of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from . import choose, points, precision, sizes
from .deferred import Deferred
from .plan import KernelSource, Launch, Plan, Pointer
from .points import Table
from .targets import Target


@dataclass
class Choices:
    """Decides which configuration each operation gets: what was measured by whoever packages, or for Pappus, or an estimate."""

    target: Target
    shared_bytes: int
    table: Table = field(default_factory=Table)
    shipped: Table = field(default_factory=Table)
    # How many candidates are kept of each operation.
    keep: int = 0
    # How float32 is multiplied.
    float32: str = precision.AS_TOLD
    kept: dict[str, dict[str, Plan]] = field(default_factory=dict)
    # Operations that were asked about.
    seen: set[str] = field(default_factory=set)

    def pick(self, choices: list[Any]) -> list[Any]:
        """Inductor's hook: of all choices for one operation those to go on with, here one."""
        if not any(isinstance(choice, Deferred) for choice in choices):
            return choices

        def time(choice: Any) -> float:
            return choose.estimate(choice, self.target, self.shared_bytes)

        waiting = sorted((choice for choice in choices if isinstance(choice, Deferred)), key=time)
        best = _made(waiting)
        if best is None:
            return [choice for choice in choices if not isinstance(choice, Deferred)]
        key = key_of(best, self.float32)
        self.seen.add(key)
        if self.keep and key not in self.kept:
            made = [(each.description, each.choice()) for each in waiting[: self.keep]]
            simple = [(name, choice) for name, choice in made if choice and not getattr(choice.bmreq, "workspace_size", None)]
            self.kept[key] = {name: _alone(choice, self.float32) for name, choice in simple}
        # Tables and those kept have the names of what waits; Inductor may call what becomes of it otherwise.
        fastest = self.table.choice(key, [each.description for each in waiting])
        if fastest is None:
            fastest = self.shipped.fastest(key)
            # What is fastest on the newest of a package's GPUs need not fit the others.
            waiting = [each for each in waiting if time(each) < math.inf]
        measured = _made([each for each in waiting if each.description == fastest])
        return [measured or best]

    def files(self, targets: Sequence[Target]) -> dict[str, bytes]:
        """What a package carries: its candidates, and of the table what is about its operations."""
        return points.files(self.kept, targets) | self.table.files(self.seen)


def _made(waiting: Sequence[Deferred]) -> Any:
    """The first of these that there can be."""
    return next((choice for choice in (each.choice() for each in waiting) if choice is not None), None)


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
