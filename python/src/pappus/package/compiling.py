"""Kernels in source form → machine code for one target, by Triton's own stages. No GPU is needed.

All kernels of a plan become one module, or one for each way in which the assembler must be called.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from . import assembly, precision
from .errors import PackageError, Unsupported
from .plan import KernelSource
from .targets import Target

# Options of a kernel that its module is assembled with.
_ASSEMBLER_OPTIONS = ("enable_fp_fusion", "ptx_options")
# More would wait for Python, and each takes memory.
_MOST_THREADS = 8


@dataclass(frozen=True)
class Compiled:
    """A kernel for one target, still as text."""

    name: str
    text: str
    entry: str
    threads: int
    clusters: int
    shared_bytes: int
    scratch_bytes: int
    scratch_align: int
    # Pointers that the kernel takes behind its own parameters.
    hidden: int


@dataclass(frozen=True)
class Module:
    """Machine code of some kernels."""

    kernels: tuple[str, ...]
    code: bytes
    # Of NVIDIA's, where it is asked for: the PTX, as workers that tenants share can take it.
    text: bytes | None


def compile_kernels(
    sources: Mapping[str, KernelSource],
    target: Target,
    say: Callable[[str], None] = lambda _: None,
    *,
    partial: bool = False,
) -> dict[str, Compiled]:
    """Compiles each kernel as far as its assembly, several at a time, and says which one it is at.

    Where one cannot be compiled, that is the error; with ``partial``, the others are returned.
    """
    made: dict[str, Compiled] = {}
    for float32 in dict.fromkeys(source.float32 for source in sources.values()):
        alike = {name: source for name, source in sources.items() if source.float32 == float32}
        with _knobs(target), _until(_form(target), float32), precision.products(float32), _one_parser(), _threads() as pool:
            waiting = [(name, pool.submit(_compile, name, source, target, say)) for name, source in alike.items()]
            for at, (name, each) in enumerate(waiting, len(sources) - len(alike)):
                say(f"compiling kernel {at + 1} of {len(sources)} for {target}: {name}")
                try:
                    made[name] = each.result()
                except PackageError:
                    if not partial:
                        raise
    return made


@contextlib.contextmanager
def _threads() -> Iterator[ThreadPoolExecutor]:
    """Threads to compile in, which are over behind this, also where an error or Ctrl-C ends it.

    Until then Triton must compile as it was told: it keeps what it makes by that.
    """
    # Python runs one thread at a time, but not while Triton's compiler works, which is most of the time.
    pool = ThreadPoolExecutor(min(len(os.sched_getaffinity(0)), _MOST_THREADS))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


@contextlib.contextmanager
def _one_parser() -> Iterator[None]:
    """Has one thread at a time parse a kernel's source: CPython 3.11 fails where several do.

    It counts how deep a syntax tree is for all of them together: "AST constructor recursion depth mismatch".
    """
    from triton.runtime.jit import JITFunction

    parse, lock = JITFunction.parse, threading.Lock()

    def alone(self: Any) -> Any:
        with lock:
            return parse(self)

    with mock.patch.object(JITFunction, "parse", alone):
        yield


def assemble(
    compiled: Mapping[str, Compiled], sources: Mapping[str, KernelSource], target: Target, *, ptx: bool = False
) -> list[Module]:
    """Makes machine code of them: as few modules as the assembler's options permit; with ``ptx``, their text beside it."""

    def how(name: str) -> tuple[tuple[str, Any], ...]:
        options = sources[name].options
        return tuple((key, options[key]) for key in _ASSEMBLER_OPTIONS if options.get(key) is not None)

    modules = []
    for options, names in itertools.groupby(sorted(compiled, key=lambda n: (repr(how(n)), n)), key=how):
        group = [compiled[name] for name in names]
        texts = [(kernel.name, kernel.entry, kernel.text) for kernel in group]
        merged = assembly.merge_ptx(texts) if target.kind == "cuda" else assembly.merge_amdgcn(texts)
        code = _assembled(merged, target, dict(options))
        text = assembly.shareable(merged).encode() if ptx and target.kind == "cuda" else None
        modules.append(Module(tuple(kernel.name for kernel in group), code, text))
    return modules


def _assembled(text: str, target: Target, options: Mapping[str, Any]) -> bytes:
    """Machine code, kept where Triton keeps what it compiles."""
    import triton
    from triton._C.libtriton import llvm
    from triton.runtime.cache import get_cache_manager

    stage = "cubin" if target.kind == "cuda" else "hsaco"
    with _knobs(target):
        backend, stages = _stages(target, options)
        known = (stage, triton.__version__, backend.hash(), target, sorted(options.items()), text)
        cache = get_cache_manager(hashlib.sha256(repr(known).encode()).hexdigest())
        kept = cache.get_file(f"pappus.{stage}")
        if kept is not None:
            return Path(kept).read_bytes()
        # Where every kernel came out of Triton's cache, nothing else has told LLVM of its targets.
        llvm.init_targets()
        code = bytes(stages[stage](text, {}))
        cache.put(code, f"pappus.{stage}")
        return code


def _gpu_target(target: Target) -> Any:
    from triton.backends.compiler import GPUTarget

    if target.kind == "cuda":
        return GPUTarget("cuda", target.capability, target.warp_size)
    return GPUTarget("hip", target.arch, target.warp_size)


def _stages(target: Target, options: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Triton's backend for a target, and its steps by name."""
    from triton.backends.compiler import Language
    from triton.compiler.compiler import make_backend

    backend = make_backend(_gpu_target(target))
    stages: dict[str, Any] = {}
    backend.add_stages(stages, backend.parse_options(dict(options)), Language.TRITON)
    return backend, stages


def _compile(name: str, source: KernelSource, target: Target, say: Callable[[str], None]) -> Compiled:
    options = dict(source.options)
    warps = int(options.get("num_warps", 4))
    if target.kind == "hip":
        # One launch serves all targets, so a block has as many threads on each.
        if warps * 32 % target.warp_size:
            raise Unsupported(f"kernel {name}", f"{target} has warps of {target.warp_size} threads: use num_warps=2 or more")
        options = {"num_warps": warps * 32 // target.warp_size, "num_stages": min(2, options.get("num_stages", 2))}
    kernel = _text_of(name, source, options, target)
    # Each stage keeps a copy of all that is read, also of what Inductor put in front of a tile when that had been chosen.
    while kernel.metadata.shared > target.shared_bytes and (stages := kernel.metadata.num_stages) > 1:
        say(f"compiling kernel {name} with {stages - 1} stages: {stages} need {kernel.metadata.shared} bytes of shared memory")
        kernel = _text_of(name, source, options | {"num_stages": stages - 1}, target)
    text, meta = _form(target), kernel.metadata
    for feature in ("launch_cooperative_grid", "launch_pdl"):
        if getattr(meta, feature, False):
            raise Unsupported(f"kernel {name}", f"{feature} has no form in a blueprint")
    if getattr(meta, "profile_scratch_size", 0):
        raise Unsupported(f"kernel {name}", "it is instrumented for profiling")
    shared = int(meta.shared)
    if shared > target.shared_bytes:
        raise Unsupported(
            f"kernel {name}",
            f"it needs {shared} bytes of shared memory, a block of {target} has at most {target.shared_bytes}",
        )
    clusters = int(getattr(meta, "num_ctas", 1) or 1)
    return Compiled(
        name=name,
        text=kernel.asm[text],
        entry=meta.name,
        threads=int(meta.num_warps) * target.warp_size,
        clusters=clusters,
        shared_bytes=shared,
        scratch_bytes=int(getattr(meta, "global_scratch_size", 0) or 0),
        scratch_align=int(getattr(meta, "global_scratch_align", 1) or 1),
        hidden=_parameters(kernel.asm[text], meta.name, text) - len(source.parameters),
    )


def _form(target: Target) -> str:
    return "ptx" if target.kind == "cuda" else "amdgcn"


def _text_of(name: str, source: KernelSource, options: Mapping[str, Any], target: Target) -> Any:
    """What Triton makes of a kernel, as far as its assembly."""
    import triton
    from triton.compiler import ASTSource

    ast = ASTSource(source.function, dict(source.signature), dict(source.constants), dict(source.attributes))
    try:
        return triton.compile(ast, target=_gpu_target(target), options=dict(options))
    except Exception as error:
        raise PackageError(f"kernel {name} does not compile for {target}: {error}") from error


def _parameters(text: str, entry: str, form: str) -> int:
    """How many parameters the kernel takes, hidden ones included: Triton's versions differ in that."""
    if form == "ptx":
        return len(re.findall(rf"^\s*\.param [^\n]*(?<![\w$]){re.escape(entry)}_param_\d+(?:\[\d+\])?,?\s*$", text, re.M))
    metadata = text[text.index(".amdgpu_metadata") :]
    kinds = re.findall(r"\.value_kind:\s*(\w+)", metadata)
    return sum(not kind.startswith("hidden") for kind in kinds)


@contextlib.contextmanager
def _knobs(target: Target) -> Iterator[None]:
    """How Triton compiles here.

    No line numbers in machine code: it is the same wherever its source lies. Up to compute capability 9.0 the older one of
    Triton's two assemblers, so that drivers for CUDA 12 load the code; the newer one's needs a driver for CUDA 13.
    """
    from triton import knobs

    with knobs.compilation.scope(), knobs.nvidia.scope():
        knobs.compilation.disable_line_info = True
        if target.kind == "cuda" and target.capability <= 90:
            knobs.nvidia.ptxas_blackwell = knobs.nvidia.ptxas.path
        yield


@contextlib.contextmanager
def _until(text: str, float32: str | None) -> Iterator[None]:
    """Has Triton leave machine code away: it is made once for all kernels."""
    from triton import knobs

    # Triton keeps what it compiled by this name, too.
    name = "pappus-text-only" if float32 is None else f"pappus-text-only-{float32}"

    def hook(*given: Any) -> Any:
        if not given:
            return name, name
        _backend, stages, *_ = given
        stages["cubin" if text == "ptx" else "hsaco"] = lambda _src, _metadata: b""
        return None

    with knobs.runtime.scope():
        knobs.runtime.add_stages_inspection_hook = hook
        yield
