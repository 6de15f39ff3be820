"""Runs a package on the processor: its blueprint step by step, its kernels by Triton's interpreter.

What is run is what the package says (sizes, offsets, grids, arguments), so a mistake in any of it shows as a wrong number
without a GPU. Machine code is not looked at.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar
from unittest import mock

import numpy
import torch

from . import sizes
from .errors import PackageError
from .plan import DTYPES, NOT_NUMPYS, KernelSource, bits

if TYPE_CHECKING:
    from .files import Package

_TORCH = {
    "bool": torch.bool,
    "u8": torch.uint8,
    "i8": torch.int8,
    "u16": torch.uint16,
    "i16": torch.int16,
    "u32": torch.uint32,
    "i32": torch.int32,
    "u64": torch.uint64,
    "i64": torch.int64,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f8e4m3fn": torch.float8_e4m3fn,
    "f8e5m2": torch.float8_e5m2,
    "f32": torch.float32,
    "f64": torch.float64,
}


def interpret(package: Package, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Outputs by name, as numpy arrays (those that NumPy lacks as tensors)."""
    if package.blueprint.get("state"):
        raise PackageError("the function has state: make its calls in a session, package.session()")
    return Session(package)(**inputs)


class Session:
    """Calls of a function whose state stays from one to the next, and is zero before the first.

    A call that fails leaves the state as it was.
    """

    def __init__(self, package: Package) -> None:
        self._package = package
        state = package.blueprint.get("state", {})
        self._state = {name: torch.zeros(sizes.known(size), dtype=torch.uint8) for name, size in state.items()}

    def __call__(self, **inputs: Any) -> dict[str, Any]:
        """Outputs by name, as numpy arrays (those that NumPy lacks as tensors)."""
        run = _Run(self._package, inputs, self._state)
        with _interpreter(run.called):
            for action in self._package.blueprint["control_flow"]:
                run.step(action)
        self._state = {name: run.bytes[name] for name in self._state}
        return {name: run.output(name) for name in self._package.blueprint["outputs"]}


class _Run:
    def __init__(self, package: Package, inputs: Mapping[str, Any], state: Mapping[str, torch.Tensor]) -> None:
        self.package = package
        blueprint = package.blueprint
        if set(inputs) != set(blueprint["inputs"]):
            raise PackageError(f"inputs are {blueprint['inputs']}, given were {sorted(inputs)}")
        self.bytes: dict[str, torch.Tensor] = {name: value.clone() for name, value in state.items()}
        self.dims: dict[str, int] = {}
        # Functions that the launch's kernel called, interpreted.
        self.called: dict[int, Any] = {}
        self.types: Mapping[str, Any] = blueprint.get("types", {})
        for name, value in inputs.items():
            tensor = torch.as_tensor(value).detach().contiguous()
            self.bytes[name] = tensor.reshape(-1).view(torch.uint8).clone()
            shape = self.types.get(name, {}).get("shape", [])
            self.dims |= {size["Free"]: extent for size, extent in zip(shape, tensor.shape, strict=False) if "Free" in size}
        for name, weight in package.weights.items():
            raw = numpy.ascontiguousarray(weight.array).reshape(-1).view(numpy.uint8)
            self.bytes[name] = torch.from_numpy(raw.copy())
        pending = dict(blueprint["buffers"])
        while pending:
            ready = [name for name, size in pending.items() if _mentions(size).isdisjoint(pending)]
            if not ready:
                raise PackageError(f"buffers {sorted(pending)} name each other's sizes in a circle")
            for name in ready:
                if name in package.plan.guards:
                    self.guarded(name, pending.pop(name))
                    continue
                self.bytes[name] = torch.zeros(self.size(pending.pop(name)), dtype=torch.uint8)

    def guarded(self, name: str, size: Any) -> None:
        try:
            self.size(size)
        except ValueError as error:
            raise PackageError(f"{name}: a call with this many is refused ({error})") from error

    def size(self, size: Any) -> int:
        if not isinstance(size, dict):
            return int(size)
        return sizes.evaluate(size, lambda name: self.bytes[name].numel(), self.dims)

    def step(self, action: Mapping[str, Any]) -> None:
        ((kind, body),) = action.items()
        if kind == "ExecKernel":
            self.launch(*body)
        elif kind == "Copy":
            start, end = self.range(body["from"], body["from_offset"], body["bytes"])
            to, to_end = self.range(body["to"], body["to_offset"], body["bytes"])
            self.bytes[body["to"]][to:to_end] = self.bytes[body["from"]][start:end].clone()
        elif kind == "Fill":
            start, end = self.range(body["buffer"], body["offset"], body["bytes"])
            self.bytes[body["buffer"]][start:end] = body["byte"]
        elif kind == "Repeat":
            times, actions = body
            for _ in range(self.size(times)):
                for each in actions:
                    self.step(each)
        else:
            raise PackageError(f"{kind} is no step of a package")

    def range(self, buffer: str, offset: Any, length: Any) -> tuple[int, int]:
        start = self.size(offset)
        end = start + self.size(length)
        if end > self.bytes[buffer].numel():
            raise PackageError(f"bytes {start} to {end} of {buffer!r}, which has {self.bytes[buffer].numel()}")
        return start, end

    def launch(self, name: str, arguments: list[Any], launch: Mapping[str, Any]) -> None:
        from triton.runtime.interpreter import InterpretedFunction

        kernel = self.package.plan.kernels[name]
        values = _constants(kernel)
        if len(arguments) < len(kernel.parameters):
            raise PackageError(f"kernel {name} takes {len(kernel.parameters)} values, the blueprint passes {len(arguments)}")
        for (parameter, kind), argument in zip(kernel.parameters, arguments, strict=False):
            values[parameter] = self.argument(kind, argument)
        x, y, z = (self.size(launch[f"grid_dim_{axis}"]) for axis in "xyz")
        grid = (x // self.size(launch.get("cluster_dim_x", sizes.absolute(1))), y, z)
        self.called.clear()
        with _plain_math(kernel.function):
            InterpretedFunction(kernel.function.fn)[grid](**values)

    def argument(self, kind: str, argument: Mapping[str, Any]) -> Any:
        ((form, value),) = argument.items()
        if form == "Ptr":
            name, offset = (value, 0) if isinstance(value, str) else (value["buffer"], self.size(value["offset"]))
            dtype = _TORCH[DTYPES[kind.removeprefix("*")]]
            rest = self.bytes[name][offset:]
            return rest[: rest.numel() // dtype.itemsize * dtype.itemsize].view(dtype)
        if form in ("F16", "BF16", "F32", "F64"):
            return float(value)
        return bool(value) if form == "Bool" else self.size(value)

    def output(self, name: str) -> Any:
        kind = self.types.get(name, {"dtype": "u8"})
        tensor = self.bytes[name].view(_TORCH[kind["dtype"]])
        if "shape" in kind:
            tensor = tensor.reshape([self.size(size) for size in kind["shape"]])
        return tensor if kind["dtype"] in NOT_NUMPYS else tensor.numpy()


def _mentions(size: Any) -> set[str]:
    """Buffers whose bytes a size depends on."""
    if isinstance(size, dict):
        if "Sizeof" in size:
            return {size["Sizeof"]}
        return {name for part in size.values() for name in _mentions(part)}
    if isinstance(size, list):
        return {name for part in size for name in _mentions(part)}
    return set()


def _constants(kernel: KernelSource) -> dict[str, Any]:
    names = list(kernel.signature)
    return {names[at[0]] if isinstance(at, tuple) else at: value for at, value in kernel.constants.items()}


@contextlib.contextmanager
def _interpreter(called: dict[int, Any]) -> Iterator[None]:
    """Functions that kernels call are interpreted, too; ``called`` has those of a launch, which begins with none."""
    import triton
    from triton.runtime.interpreter import InterpretedFunction, InterpreterBuilder, _patch_lang
    from triton.runtime.jit import JITFunction

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if id(self) not in called:
            # The language stays the interpreter's until the launch ends. Triton replaces all of it again at every call.
            _patch_lang(self.fn)
            called[id(self)] = InterpretedFunction(self.fn).rewrite()
        # Functions that kernels call may be of another file.
        with _plain_math(self):
            return called[id(self)](*args, **kwargs)

    given = InterpreterBuilder.create_splat

    def splat(self: Any, shape: Any, value: Any) -> Any:
        # A comparison of two numbers keeps their type's name; as a mask it must stay a truth value.
        result = given(self, shape, value)
        result.data = result.data.astype(value.data.dtype, copy=False)
        return result

    multiplied = InterpreterBuilder.create_dot

    def dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        # It multiplies bf16 as the whole numbers that it keeps their bits in.
        return multiplied(self, _widened(a), _widened(b), *rest)

    cast, rounded = InterpreterBuilder.cast_impl, InterpreterBuilder.create_fp_to_fp

    def converted(self: Any, source: Any, to: Any) -> Any:
        # It converts between whole numbers and the bits of a small float.
        if _small(to) is not None:
            return _narrowed(cast(self, _widened(source), triton.language.float32), to)
        return cast(self, _widened(source), to)

    def from_float(self: Any, source: Any, to: Any, how: Any) -> Any:
        # Of eight bits it loses what is carried, and what is no number.
        small = (_small(source.dtype), _small(to))
        eight = any(kind is not None and kind.itemsize == 1 for kind in small)
        return converted(self, source, to) if eight else rounded(self, source, to, how)

    language = triton.language
    owners = (language, language.core, language.math, language.tensor, language.dtype, language.core.tensor_descriptor_base)
    # The interpreter puts functions of its own in the language's place, and leaves some of them there.
    before = [(owner, dict(vars(owner))) for owner in owners]
    try:
        with (
            mock.patch.object(JITFunction, "__call__", call),
            mock.patch.object(InterpreterBuilder, "create_splat", splat),
            mock.patch.object(InterpreterBuilder, "create_dot", dot),
            mock.patch.object(InterpreterBuilder, "cast_impl", converted),
            mock.patch.object(InterpreterBuilder, "create_fp_to_fp", from_float),
        ):
            yield
    finally:
        for owner, names in before:
            # Modules keep what rewritten functions of theirs refer to.
            for name in vars(owner).keys() - names.keys() if isinstance(owner, type) else ():
                delattr(owner, name)
            for name, value in names.items():
                if vars(owner).get(name) is not value:
                    setattr(owner, name, value)


def _small(kind: Any) -> torch.dtype | None:
    """PyTorch's type of floats of which the interpreter keeps the bits, in whole numbers."""
    name = DTYPES.get(str(kind.scalar), "")
    return _TORCH[name] if name in NOT_NUMPYS else None


def _widened(handle: Any) -> Any:
    """A value of the interpreter's, as float32 where it keeps bits."""
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    kind = _small(handle.dtype)
    if kind is None:
        return handle
    kept = torch.from_numpy(numpy.array(handle.data, f"u{kind.itemsize}"))
    return TensorHandle(kept.view(kind).float().numpy(), tl.float32)


def _narrowed(handle: Any, to: Any) -> Any:
    """A value of float32 as bits of a smaller float."""
    from triton.runtime.interpreter import TensorHandle

    kind = _small(to)
    assert kind is not None
    return TensorHandle(bits(torch.from_numpy(numpy.array(handle.data)).to(kind)).numpy(), to.scalar)


@contextlib.contextmanager
def _plain_math(function: Any) -> Iterator[None]:
    """The device's library of functions, which is machine code, by numpy's."""
    names = function.fn.__globals__
    before = names.get("libdevice")
    if before is not None:
        names["libdevice"] = _Libdevice()
    try:
        yield
    finally:
        if before is not None:
            names["libdevice"] = before


class _Libdevice:
    """CUDA's functions of that name on the interpreter's values."""

    _OTHER: ClassVar[dict[str, Any]] = {
        "rsqrt": lambda x: 1 / numpy.sqrt(x),
        "erf": numpy.vectorize(math.erf, otypes=[numpy.float64]),
        "pow": numpy.power,
        "llrint": numpy.rint,
        "nearbyint": numpy.rint,
        "acos": numpy.arccos,
        "asin": numpy.arcsin,
        "atan": numpy.arctan,
        "atan2": numpy.arctan2,
        "abs": numpy.abs,
    }

    def __getattr__(self, name: str) -> Any:
        function = self._OTHER.get(name) or getattr(numpy, name, None)
        if function is None:
            raise PackageError(f"libdevice.{name} is not known to the interpreter")

        def apply(*args: Any) -> Any:
            import triton.language as tl
            from triton.runtime.interpreter import TensorHandle

            handles = [arg.handle for arg in args]
            data = function(*(handle.data for handle in handles))
            return tl.core.tensor(TensorHandle(data.astype(handles[0].data.dtype), handles[0].dtype), args[0].type)

        return apply
