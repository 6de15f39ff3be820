"""A function of JAX → executables of XLA, one for each target, and what their arguments and results are called.

The function is traced once; arrays that it holds become arguments, so that they stay files instead of constants in the code.
XLA compiles for a GPU that is described to it, so none is needed.
"""

from __future__ import annotations

import importlib.util
import inspect
import re
import shutil
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy
from jax.experimental import topologies

from pappus._extras import install

from . import sizes, xla_hlo, xla_messages
from .errors import PackageError, Unsupported
from .plan import DTYPE_BYTES, ArrayType, unused_name
from .targets import Target
from .xla_plan import Parameter

# Releases of JAX that this was tried with (scripts/ecosystem): it reads XLA's own messages.
SUPPORTED = ("0.12",)

# Where JAX's own files lie.
_JAX = str(Path(str(jax.__file__)).parent)

# Of names of element types.
_SHORT = {"bool": "bool", "bfloat": "bf", "float": "f", "uint": "u", "int": "i"}

_OPTIONS: dict[str, Any] = {
    # Nothing can be measured here: tiles are chosen by XLA's model of costs.
    "xla_gpu_autotune_level": 0,
    "xla_gpu_experimental_cost_model_gemm_tiling_default": True,
    # Everything is a kernel, as far as XLA has one.
    "xla_gpu_experimental_disable_binary_libraries": True,
    "xla_gpu_cublas_fallback": False,
    "xla_gpu_enable_cublaslt": False,
    # Launches wait for the one before them.
    "xla_gpu_enable_pdl": False,
}


# Tiles of matrix products that XLA's model of costs chooses among: rows, columns, summed elements, stages, warps. Those that
# do not suit a product's type or GPU are left out by XLA. Of a list of its own it often chooses one with tensor maps, which
# are not packaged; no option of XLA's keeps it from those alone.
TILES = (
    (16, 16, 32, 4, 2),
    (16, 64, 64, 4, 4),
    (64, 16, 64, 4, 4),
    (32, 64, 64, 4, 4),
    (64, 32, 64, 4, 4),
    (64, 64, 32, 4, 4),
    (64, 64, 64, 3, 4),
    (64, 128, 64, 3, 4),
    (128, 64, 64, 3, 4),
    (128, 128, 32, 4, 8),
    (128, 128, 64, 3, 8),
    (128, 256, 64, 3, 8),
    (256, 128, 64, 3, 8),
)


@dataclass(frozen=True)
class Gpu:
    """A GPU as XLA plans for it."""

    name: str
    cores: int
    units: int
    threads: int
    shared_core: int
    shared_block: int
    memory: int
    bandwidth: int
    cache: int
    clock: float


# What a target's tiles are chosen for: the GPUs that machine code of it mostly runs on.
GPUS = {
    "sm_80": Gpu("NVIDIA A100-SXM4-80GB", 108, 64, 2048, 167936, 166912, 85_100_068_864, 2_039_040_000_000, 41_943_040, 1.41),
    "sm_86": Gpu("NVIDIA RTX A6000", 84, 128, 1536, 102400, 101376, 51_041_271_808, 768_096_000_000, 6_291_456, 1.8),
    "sm_89": Gpu("NVIDIA L40S", 142, 128, 1536, 102400, 101376, 47_810_000_000, 864_096_000_000, 100_663_296, 2.52),
    "sm_90": Gpu("NVIDIA H200", 132, 128, 2048, 233472, 232448, 151_397_597_184, 4_800_000_000_000, 52_428_800, 1.98),
    "sm_100": Gpu("NVIDIA B200", 148, 128, 2048, 233472, 232448, 191_514_411_008, 7_672_320_000_000, 132_644_864, 1.965),
    "sm_120": Gpu(
        "NVIDIA RTX PRO 6000 Blackwell", 188, 128, 1536, 131072, 101376, 103_079_215_104, 1_792_000_000_000, 134_217_728, 2.6
    ),
}


@dataclass(frozen=True)
class Traced:
    """A function with named arguments and results, ready to be compiled."""

    function: Callable[..., Any]
    parameters: list[Parameter]
    shapes: list[Any]
    outputs: list[str]
    types: dict[str, ArrayType]


def trace(function: Callable[..., Any], example_inputs: Sequence[Any], weights: Any = None) -> Traced:
    """Traces the function for arguments like the examples; ``weights``, if there are any, are its first one."""
    _supported()
    given = tuple(example_inputs) if weights is None else (weights, *example_inputs)
    try:
        names = _argument_names(function, given)
        paths, _ = jax.tree_util.tree_flatten_with_path(given)
        closed, result = jax.make_jaxpr(function, return_shape=True)(*given)
    except PackageError:
        raise
    except Exception as error:
        raise PackageError(f"JAX cannot trace the function: {error}") from error
    _refuse_callbacks(closed.jaxpr)
    taken: list[str] = []
    parameters: list[Parameter] = []
    for number, constant in enumerate(closed.consts):
        parameters.append(Parameter(unused_name(f"constant{number}", taken), _array(constant)))
        taken.append(parameters[-1].name)
    for path, value in paths:
        held = weights is not None and path[0].idx == 0
        name = _path_name(path[1:]) if held else ".".join(filter(None, (names[path[0].idx], _path_name(path[1:]))))
        parameters.append(Parameter(unused_name(name or "weights", taken), _array(value) if held else None))
        taken.append(parameters[-1].name)
    avals = [jax.typeof(constant) for constant in closed.consts] + list(closed.in_avals)
    outputs = _output_names(result, taken)
    names = [*(parameter.name for parameter in parameters), *outputs]
    types = {name: _type(name, aval) for name, aval in zip(names, [*avals, *closed.out_avals], strict=True)}
    count = len(closed.consts)

    def flat(*values: Any) -> Any:
        return tuple(jax.core.eval_jaxpr(closed.jaxpr, values[:count], *values[count:]))

    shapes = [(aval.shape, aval.dtype) for aval in avals]
    return Traced(flat, parameters, shapes, outputs, types)


def compile_for(traced: Traced, target: Target, planned_for: Target, messages: xla_messages.Messages) -> Any:
    """XLA's executable for one target, with launches as for ``planned_for``, as far as code for both can have the same."""
    for each in (target, planned_for):
        if each.arch not in GPUS:
            raise PackageError(f"{each} is not described to XLA here; targets of JAX functions are {', '.join(GPUS)}")
    gpu = GPUS[planned_for.arch]
    try:
        topology = topologies.get_topology_desc("pappus", "cuda", target_config=_described(gpu, target), topology="1x1x1")
        place = jax.sharding.SingleDeviceSharding(topology.devices[0])
        arguments = [jax.ShapeDtypeStruct(shape, dtype, sharding=place) for shape, dtype in traced.shapes]
        lowered = jax.jit(traced.function, keep_unused=True, out_shardings=place).lower(*arguments)
        with tempfile.NamedTemporaryFile("w", prefix="pappus-", suffix=".textproto") as tiles:
            tiles.write(_tiles())
            tiles.flush()
            given = {"xla_gpu_gemm_autotuner_override_file": tiles.name}
            compiled = lowered.compile(compiler_options={**_OPTIONS, **_toolkit(), **given})
        serialized = compiled.runtime_executable().serialize()
    except NotImplementedError as error:
        if "topology" not in str(error):
            raise PackageError(f"XLA cannot compile the function for {target}: {error}") from error
        raise PackageError(
            "JAX did not load its plugin for CUDA, because it looked for a GPU and CUDA's libraries: on a machine without "
            "them, start with JAX_PLATFORMS=cpu in the environment"
        ) from error
    except Exception as error:
        raise PackageError(f"XLA cannot compile the function for {target}: {error}") from error
    executable = messages.executable(serialized)
    _dense(executable.program_shape)
    return executable


def _supported() -> None:
    if not jax.__version__.startswith(tuple(f"{release}." for release in SUPPORTED)):
        warnings.warn(f"packaging was tried with JAX {' and '.join(SUPPORTED)}, this is {jax.__version__}", stacklevel=4)


def _argument_names(function: Callable[..., Any], given: tuple[Any, ...]) -> list[str]:
    """What the function calls its arguments."""
    try:
        bound = inspect.signature(function).bind(*given).arguments
    except ValueError:
        return [f"input{at}" for at in range(len(given))]
    except TypeError as error:
        raise PackageError(f"the function does not take {len(given)} arguments: {error}") from error
    names: list[str] = []
    for name, value in bound.items():
        several = inspect.signature(function).parameters[name].kind == inspect.Parameter.VAR_POSITIONAL
        names += [f"{name}{at}" for at in range(len(value))] if several else [name]
    return names


def _path_name(path: Sequence[Any]) -> str:
    """``layers.0.kernel``: the way into a tree of dictionaries, lists and objects."""
    parts = []
    for step in path:
        for attribute in ("key", "idx", "name"):
            if hasattr(step, attribute):
                parts.append(str(getattr(step, attribute)))
                break
    return ".".join(parts)


def _output_names(result: Any, taken: Sequence[str]) -> list[str]:
    """``output``, or ``output0`` …, or the keys of a dictionary."""
    count = len(jax.tree_util.tree_leaves(result))
    if count == 0:
        raise PackageError("the function has no result")
    if isinstance(result, dict) and len(result) == count and all(jax.tree_util.all_leaves([v]) for v in result.values()):
        names = [str(key) for key in sorted(result)]
    else:
        names = ["output"] if count == 1 else [f"output{at}" for at in range(count)]
    found: list[str] = []
    for name in names:
        found.append(unused_name(name, [*taken, *found]))
    return found


def _refuse_callbacks(jaxpr: Any) -> None:
    """Finds what calls Python, inner functions included; XLA would only say that it has no GPU to do it with."""
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        if "callback" in name or name == "debug_print":
            frames = equation.source_info.traceback.frames if equation.source_info.traceback else []
            own = [frame for frame in frames if not frame.file_name.startswith(_JAX)]
            where = xla_hlo.shown(own[0].file_name, own[0].line_num) if own else None
            raise Unsupported(name, "a function does nothing on the host", where)
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple | list) else [value]:
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    _refuse_callbacks(inner)


def _array(value: Any) -> Any:
    """A weight's elements; of types that numpy does not know, their bytes."""
    array = numpy.asarray(value)
    if array.dtype == jnp.bfloat16:
        return array.view(numpy.uint16)
    return array.astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False)


def _type(name: str, aval: Any) -> ArrayType:
    short = re.sub("^(bool|bfloat|float|uint|int)", lambda kind: _SHORT[kind[0]], str(aval.dtype))
    kind = short if short in DTYPE_BYTES else None
    if kind is None:
        raise Unsupported(f"{name!r} of type {aval.dtype}", "packages of JAX do not have it")
    return ArrayType(kind, tuple(sizes.absolute(size) for size in aval.shape))


def _dense(shape: Any) -> None:
    """Inputs and outputs lie in memory as numpy's arrays do."""
    for array in [*shape.parameters, *(shape.result.tuple_shapes or [shape.result])]:
        if list(array.layout.minor_to_major) != list(range(len(array.dimensions)))[::-1]:
            raise PackageError(f"XLA lays an array of {list(array.dimensions)} out as {list(array.layout.minor_to_major)}")


def _described(gpu: Gpu, target: Target) -> str:
    """XLA's description of a GPU, as text."""
    major, minor = divmod(target.capability, 10)
    feature = "ACCELERATED_FEATURES" if target.capability >= 90 else "NONE"
    return f"""
gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: {target.warp_size}
  shared_memory_per_block: 49152
  shared_memory_per_core: {gpu.shared_core}
  shared_memory_per_block_optin: {gpu.shared_block}
  threads_per_core_limit: {gpu.threads}
  core_count: {gpu.cores}
  fpus_per_core: {gpu.units}
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  thread_dim_limit_x: 1024
  thread_dim_limit_y: 1024
  thread_dim_limit_z: 64
  memory_bandwidth: {gpu.bandwidth}
  l2_cache_size: {gpu.cache}
  clock_rate_ghz: {gpu.clock}
  device_memory_size: {gpu.memory}
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  cuda_compute_capability {{ major: {major} minor: {minor} feature_extension: {feature} }}
}}
platform_name: "CUDA"
device_description_str: "{gpu.name}"
"""


def _tiles() -> str:
    """What XLA reads of tiles, as text."""
    names = ("block_m", "block_n", "block_k", "num_stages", "num_warps")
    lines = (" ".join(f"{name}: {size}" for name, size in zip(names, tile, strict=True)) for tile in TILES)
    return "".join(f"config {{ {line} num_ctas: 1 }}\n" for line in lines)


def _toolkit() -> dict[str, str]:
    """Where XLA finds the assembler: CUDA 12's, if it is installed, whose code older drivers load, too."""
    for package in ("nvidia.cuda_nvcc", "nvidia.cu13"):
        try:
            found = importlib.util.find_spec(package)
        except ModuleNotFoundError:
            found = None
        for folder in (found.submodule_search_locations or []) if found else []:
            if (Path(folder) / "bin/ptxas").is_file():
                return {"xla_gpu_cuda_data_dir": str(folder)}
    if shutil.which("ptxas"):
        return {}
    raise PackageError(f"CUDA's assembler (ptxas) is missing: {install('jax')}")
