"""Executables of XLA for some targets → a package: machine code as it is, and the blueprint that launches it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from . import build, sizes, xla_lowering, xla_messages, xla_plan
from .errors import PackageError
from .files import Package
from .plan import Launch, Plan, Pointer
from .targets import Target
from .xla_plan import MachineKernel

# Modules that a function may have (docs/blueprint.md); every kernel of XLA's is one.
MAX_MODULES = 512


def package(function: Callable[..., Any], example_inputs: Sequence[Any], weights: Any, targets: Sequence[Target]) -> Package:
    """Compiles a function for every target; nothing is on disk yet."""
    for target in targets:
        if target.kind != "cuda":
            raise PackageError(f"{target}: functions of JAX are packaged for NVIDIA's GPUs only")
    messages = xla_messages.Messages(xla_messages.find_library())
    traced = xla_lowering.trace(function, example_inputs, weights)
    # What the oldest of them can do, all can.
    planned_for = min(targets, key=lambda target: target.capability)
    read = {}
    for target in targets:
        executable = xla_lowering.compile_for(traced, target, planned_for, messages)
        read[target] = xla_plan.read(executable, traced.parameters, traced.types, traced.outputs)
    plan, kernels = read[targets[0]]
    if not kernels:
        raise PackageError("nothing is computed: no step launches a kernel")
    if len(kernels) > min(MAX_MODULES, build.MAX_KERNELS):
        raise PackageError(f"{len(kernels)} kernels, each a module: a function has at most {MAX_MODULES}")
    for target, (other, others) in read.items():
        _same(targets[0], plan, kernels, target, other, others)
    shared = {name: max(others[name].shared_bytes for _, others in read.values()) for name in kernels}
    for target in targets:
        for name, number in shared.items():
            if number > target.shared_bytes:
                raise PackageError(f"kernel {name} takes {number} bytes of shared memory, {target} has {target.shared_bytes}")
    modules = {
        f"modules/{name}{target.file_suffix}": others[name].code for name in kernels for target, (_, others) in read.items()
    }
    flow = build.control_flow(plan.steps, lambda step: _launch(step, kernels[step.kernel], shared[step.kernel]))
    listed = [
        {"module_name": name, "kernel_name": kernel.entry} | ({"alias": name} if name != kernel.entry else {})
        for name, kernel in kernels.items()
    ]
    return build.package(plan, plan.buffers, flow, modules, list(kernels), listed, targets)


def _same(
    first: Target,
    plan: Plan,
    kernels: Mapping[str, MachineKernel],
    target: Target,
    other: Plan,
    others: Mapping[str, MachineKernel],
) -> None:
    """One blueprint serves all targets: their kernels and launches must be the same but for the code."""
    if set(kernels) != set(others):
        differ = sorted(set(kernels) ^ set(others))
        raise PackageError(f"{first} and {target} have different kernels ({', '.join(differ)}): make a package for each")
    for name, kernel in kernels.items():
        for what in ("entry", "threads", "clusters", "written"):
            if getattr(kernel, what) != getattr(others[name], what):
                raise PackageError(f"kernel {name}: {what} differ between {first} and {target}: make a package for each")
    if (plan.steps, plan.buffers, set(plan.weights)) != (other.steps, other.buffers, set(other.weights)):
        raise PackageError(f"XLA plans launches and memory differently for {first} and {target}: make a package for each")


def _launch(step: Launch, kernel: MachineKernel, shared_bytes: int) -> dict[str, Any]:
    arguments = []
    for pointer in step.arguments.values():
        assert isinstance(pointer, Pointer)
        arguments.append(build.pointer_argument(pointer))
    launch = {f"grid_dim_{axis}": count for axis, count in zip("xyz", step.grid, strict=True)}
    launch |= {f"block_dim_{axis}": sizes.absolute(count) for axis, count in zip("xyz", kernel.threads, strict=True)}
    launch["shared_mem_bytes"] = sizes.absolute(shared_bytes)
    for axis, count in zip("xyz", kernel.clusters, strict=True):
        if count > 1:
            launch[f"cluster_dim_{axis}"] = sizes.absolute(count)
    return {"ExecKernel": [step.kernel, arguments, launch]}
