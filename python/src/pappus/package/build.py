"""A plan → a package: its kernels compiled for every target, and the blueprint that launches them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from . import compiling, sizes
from .compiling import Compiled
from .errors import PackageError
from .files import Package, Weight
from .plan import (
    ARGUMENTS,
    NOT_NUMPYS,
    Copy,
    Fill,
    KernelSource,
    Launch,
    Plan,
    Pointer,
    Repeat,
    Step,
    launches,
    pointers,
    unused_name,
)
from .sizes import Size
from .targets import Target

# Limits of the format (docs/blueprint.md) that a model can reach.
MAX_KERNELS = 1024
MAX_BUFFERS = 4096


def build(plan: Plan, targets: Sequence[Target], say: Callable[[str], None] = lambda _: None, *, ptx: bool = False) -> Package:
    """Compiles a plan's kernels and writes it down; nothing is on disk yet. ``say`` is told of each kernel.

    With ``ptx``, PTX lies beside NVIDIA's machine code.
    """
    plan, sources = _with_sources(plan, targets)
    compiled = {target: compiling.compile_kernels(sources, target, say) for target in targets}
    checked = _Checked.of(plan, sources, compiled)
    modules, stems = _assembled([checked], targets, ptx=ptx)
    return checked.package(modules, stems)


def build_together(plans: Sequence[Plan], targets: Sequence[Target]) -> list[Package | None]:
    """Plans whose kernels have different names, as packages with the same modules; none for those that cannot be built."""
    ready = [_with_sources(plan, targets) for plan in plans]
    sources = {name: source for _, own in ready for name, source in own.items()}
    compiled = {target: compiling.compile_kernels(sources, target, partial=True) for target in targets}
    found: list[_Checked | None] = []
    for plan, own in ready:
        try:
            there = all(name in kernels for kernels in compiled.values() for name in own)
            found.append(_Checked.of(plan, own, compiled) if there else None)
        except PackageError:
            # Too much shared memory for one of the targets, for example.
            found.append(None)
    modules, stems = _assembled([checked for checked in found if checked], targets)
    return [checked.package(modules, stems) if checked else None for checked in found]


def _with_sources(plan: Plan, targets: Sequence[Target]) -> tuple[Plan, dict[str, KernelSource]]:
    """A plan with its buffers placed, and the kernels that it launches; refuses what no function can be."""
    plan = plan.arranged()
    plan.check()
    used = {launch.kernel for launch in launches(plan.steps)}
    sources = {name: _fitting(source, targets) for name, source in plan.kernels.items() if name in used}
    if not sources:
        raise PackageError("nothing is computed: no step launches a kernel")
    if len(sources) > MAX_KERNELS or len(plan.names()) > MAX_BUFFERS:
        found = f"{len(sources)} kernels and {len(plan.names())} buffers"
        # Kernels are called after the operators that they compute.
        like, many = Counter(re.sub(r"_\d+$", "", name) for name in sources).most_common(1)[0]
        found = f"{found} ({many} are {like})"
        limits = f"a function has at most {MAX_KERNELS} and {MAX_BUFFERS}"
        raise PackageError(f"{found}, {limits}: package parts of the model, and join them with package.compose()")
    return plan, sources


@dataclass(frozen=True)
class _Checked:
    """A plan that can be built, with its kernels compiled as far as their assembly."""

    plan: Plan
    sources: Mapping[str, KernelSource]
    compiled: Mapping[Target, Mapping[str, Compiled]]
    shapes: Mapping[str, _LaunchShape]

    @classmethod
    def of(cls, plan: Plan, sources: Mapping[str, KernelSource], compiled: Mapping[Target, Mapping[str, Compiled]]) -> _Checked:
        """``compiled`` has the plan's kernels, perhaps beside others."""
        own = {target: {name: kernels[name] for name in sources} for target, kernels in compiled.items()}
        shapes = {name: _LaunchShape.of(name, {target: each[name] for target, each in own.items()}) for name in sources}
        return cls(plan, sources, own, shapes)

    def package(self, modules: Mapping[str, bytes], stems: Mapping[str, Sequence[str]]) -> Package:
        """With code that has its kernels, perhaps beside others; ``stems`` says which module has which."""
        own = {stem: [name for name in names if name in self.sources] for stem, names in stems.items()}
        own = {stem: names for stem, names in own.items() if names}
        buffers = dict(self.plan.buffers)

        def launch(step: Launch) -> dict[str, Any]:
            return _launch(step, self.sources[step.kernel], self.shapes[step.kernel], buffers, self.plan)

        kernels = [{"module_name": stem, "kernel_name": name} for stem, names in own.items() for name in names]
        flow = control_flow(self.plan.steps, launch)
        return package(self.plan, buffers, flow, modules, list(own), kernels, list(self.compiled))


def _assembled(
    plans: Sequence[_Checked], targets: Sequence[Target], *, ptx: bool = False
) -> tuple[dict[str, bytes], dict[str, list[str]]]:
    """Files of machine code by path, and the kernels of each module by its stem."""
    modules: dict[str, bytes] = {}
    stems: dict[str, list[str]] = {}
    sources = {name: source for plan in plans for name, source in plan.sources.items()}
    for target in targets:
        compiled = {name: kernel for plan in plans for name, kernel in plan.compiled[target].items()}
        for at, module in enumerate(compiling.assemble(compiled, sources, target, ptx=ptx)):
            stem = "kernels" if at == 0 else f"kernels{at + 1}"
            modules[f"modules/{stem}{target.file_suffix}"] = module.code
            if module.text is not None:
                modules[f"modules/{stem}{target.text_suffix}"] = module.text
            stems[stem] = list(module.kernels)
    return modules, stems


def package(
    plan: Plan,
    buffers: Mapping[str, Size],
    flow: Sequence[Mapping[str, Any]],
    modules: Mapping[str, bytes],
    stems: Sequence[str],
    kernels: Sequence[Mapping[str, str]],
    targets: Sequence[Target],
) -> Package:
    """Writes down a plan whose kernels are compiled: ``flow`` are its steps, ``modules`` files, ``stems`` their names."""
    weights = _weights(plan)
    document = {
        # The file named need not exist: variants of it lie beside.
        "modules": [{"module_name": stem, "path": f"modules/{stem}.cubin"} for stem in stems],
        "kernels": list(kernels),
        "weight_files": {name: weight.path for name, weight in weights.items()},
        "blueprint": _blueprint(plan, buffers, flow),
    }
    return Package(document=document, modules=modules, weights=weights, plan=plan, targets=tuple(targets))


def _fitting(source: KernelSource, targets: Sequence[Target]) -> KernelSource:
    """A kernel with blocks that every target can have: one warp of 64 threads is two of 32."""
    least = max(target.warp_size for target in targets) // 32
    if source.options.get("num_warps", 4) >= least:
        return source
    return replace(source, options={**source.options, "num_warps": least})


class _LaunchShape:
    """What a launch needs besides its grid: the same numbers for every target."""

    def __init__(self, threads: int, clusters: int, shared_bytes: int, scratch_bytes: int, hidden: int) -> None:
        self.threads = threads
        self.clusters = clusters
        self.shared_bytes = shared_bytes
        self.scratch_bytes = scratch_bytes
        self.hidden = hidden

    @classmethod
    def of(cls, name: str, by_target: Mapping[Target, Compiled]) -> _LaunchShape:
        """What serves all compiled forms of a kernel."""
        forms = list(by_target.values())
        for what in ("threads", "clusters", "hidden"):
            found = {getattr(form, what) for form in forms}
            if len(found) > 1:
                raise PackageError(f"kernel {name}: {what} differ between targets ({sorted(found)}): make a package for each")
        shared = max(form.shared_bytes for form in forms)
        for target in by_target:
            if shared > target.shared_bytes:
                raise PackageError(
                    f"kernel {name} takes {shared} bytes of shared memory on one target, {target} has "
                    f"{target.shared_bytes}: make a package for each"
                )
        first = forms[0]
        if first.hidden not in (0, 1, 2):
            raise PackageError(f"kernel {name} takes {first.hidden} parameters that its source does not have")
        if max(form.scratch_align for form in forms) > 256:
            raise PackageError(f"kernel {name}: its scratch memory is aligned to more than 256 bytes")
        scratch = max(form.scratch_bytes for form in forms)
        return cls(first.threads, first.clusters, shared, scratch, first.hidden)


def control_flow(steps: Sequence[Step], launch: Callable[[Launch], dict[str, Any]]) -> list[dict[str, Any]]:
    """Steps as blueprints have them."""
    flow: list[dict[str, Any]] = []
    for step in steps:
        if isinstance(step, Launch):
            flow.append(launch(step))
        elif isinstance(step, Copy):
            flow.append({"Copy": _range("from", step.source) | _range("to", step.to) | {"bytes": step.bytes}})
        elif isinstance(step, Repeat):
            flow.append({"Repeat": [step.times, control_flow(step.steps, launch)]})
        else:
            flow.append({"Fill": _fill(step)})
    return flow


def _blueprint(plan: Plan, buffers: Mapping[str, Size], flow: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    used = {pointer.buffer for step in plan.steps for pointer in pointers(step)} | {*plan.outputs}
    kept = {name: size for name, size in buffers.items() if name in used or name not in plan.buffers}
    kept |= {unused_name(name, plan.names()): size for name, size in plan.guards.items()}
    types = {name: kind.to_json() for name, kind in plan.types.items() if name in plan.names()}
    optional: dict[str, Any] = {}
    if plan.state:
        optional["state"] = {name: sizes.absolute(size) for name, size in plan.state.items()}
    if plan.batch:
        dimension, most = plan.batch
        optional["batch"] = {"dimension": dimension, "most": most}
    return {
        "inputs": plan.inputs,
        "weights": list(plan.weights),
        **optional,
        "buffers": kept,
        "outputs": plan.outputs,
        "types": {name: kind for name, kind in types.items() if name in kept or name not in plan.buffers},
        "control_flow": list(flow),
    }


def _launch(step: Launch, source: KernelSource, shape: _LaunchShape, buffers: dict[str, Size], plan: Plan) -> dict[str, Any]:
    arguments = [_argument(step, name, kind) for name, kind in source.parameters]
    blocks = list(step.grid)
    if shape.clusters > 1:
        # Triton counts clusters, launches count blocks.
        blocks[0] = sizes.product([blocks[0], sizes.absolute(shape.clusters)])
    hidden: list[dict[str, Any]] = [{"U64": 0}] * shape.hidden
    if shape.scratch_bytes:
        scratch = unused_name(f"scratch_{step.kernel}", {*plan.names(), *buffers})
        buffers[scratch] = sizes.product([*blocks, sizes.absolute(shape.scratch_bytes)])
        hidden = [{"Ptr": scratch}, *hidden[1:]]
    launch = {f"grid_dim_{axis}": count for axis, count in zip("xyz", blocks, strict=True)}
    launch |= {"block_dim_x": sizes.absolute(shape.threads), "block_dim_y": sizes.absolute(1)}
    launch |= {"block_dim_z": sizes.absolute(1), "shared_mem_bytes": sizes.absolute(shape.shared_bytes)}
    if shape.clusters > 1:
        launch["cluster_dim_x"] = sizes.absolute(shape.clusters)
    return {"ExecKernel": [step.kernel, [*arguments, *hidden], launch]}


def _argument(step: Launch, name: str, kind: str) -> dict[str, Any]:
    value = step.arguments.get(name)
    if isinstance(value, Pointer):
        if not kind.startswith("*"):
            raise PackageError(f"kernel {step.kernel}: {name} is no pointer but {kind}, it was given {value.buffer!r}")
        return pointer_argument(value)
    form = ARGUMENTS.get(kind)
    if form is None or value is None:
        raise PackageError(f"kernel {step.kernel}: parameter {name} of type {kind} has no form in a blueprint")
    if isinstance(value, dict):
        number = sizes.known(value)
        return {form: value if number is None else number}
    if form == "Bool":
        return {form: bool(value)}
    return {form: float(value) if form in ("F16", "BF16", "F32", "F64") else int(value)}


def pointer_argument(pointer: Pointer) -> dict[str, Any]:
    """An address, as an argument."""
    if sizes.known(pointer.offset) == 0:
        return {"Ptr": pointer.buffer}
    return {"Ptr": {"buffer": pointer.buffer, "offset": pointer.offset}}


def _range(key: str, pointer: Pointer) -> dict[str, Any]:
    return {key: pointer.buffer, f"{key}_offset": pointer.offset}


def _fill(step: Fill) -> dict[str, Any]:
    return {"buffer": step.to.buffer, "offset": step.to.offset, "bytes": step.bytes, "byte": step.byte}


def _weights(plan: Plan) -> dict[str, Weight]:
    taken: set[str] = set()
    weights = {}
    for name, array in plan.weights.items():
        kind = plan.types.get(name)
        # Bytes as they are.
        extension = "bin" if kind is not None and kind.dtype in NOT_NUMPYS else "npy"
        stem = "".join(c if c.isalnum() or c in "._-" else "_" for c in name).lstrip(".")[:200] or "weight"
        path = unused_name(f"weights/{stem}.{extension}", taken)
        taken.add(path)
        weights[name] = Weight(path, array)
    return weights
