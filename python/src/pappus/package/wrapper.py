"""Inductor's wrapper lines → steps of a plan.

Inductor describes a program as a list of lines (allocate, launch, free …) before it writes it in Python or C++. A backend
of our own takes that list, and ends the compilation there. What is read of it: which buffers there are, which kernels
with which sizes, and which operators were left to PyTorch's own libraries: these are refused with their line in the
model.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sympy
import torch
from torch._inductor import ir
from torch._inductor.codegen import wrapper as lines
from torch._inductor.codegen.wrapper_fxir import WrapperFxCodegen
from torch._inductor.utils import LineContext
from torch._inductor.virtualized import V

from . import dimensions, expressions, recurrent, sizes
from .dimensions import Dimensions
from .errors import PackageError, Unsupported
from .plan import (
    NOT_NUMPYS,
    ArrayType,
    Copy,
    Fill,
    KernelSource,
    Launch,
    Plan,
    Pointer,
    bits,
    dense_bytes,
    map_pointers,
    unused_name,
)
from .sizes import Size

_HERE = Path(__file__).parent

TORCH_DTYPES = {
    torch.bool: "bool",
    torch.uint8: "u8",
    torch.int8: "i8",
    torch.uint16: "u16",
    torch.int16: "i16",
    torch.uint32: "u32",
    torch.int32: "i32",
    torch.uint64: "u64",
    torch.int64: "i64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float8_e4m3fn: "f8e4m3fn",
    torch.float8_e5m2: "f8e5m2",
    torch.float32: "f32",
    torch.float64: "f64",
}


def dtype_name(dtype: torch.dtype) -> str:
    """Blueprints' name of an element type."""
    if dtype not in TORCH_DTYPES:
        raise Unsupported(f"arrays of {dtype}", f"a function's are of {', '.join(TORCH_DTYPES.values())}")
    return TORCH_DTYPES[dtype]


_INSTEAD = "write it in other operators"

# Lines that say nothing about what is computed.
_IGNORED = {
    "CommentLine",
    "FreeLine",
    "FreeIfNotReusedLine",
    "NullLine",
    "AssertSizeStrideLine",
    "GroupedAssertSizeStrideLine",
    "AssertAlignmentLine",
    "EnterDeviceContextManagerLine",
    "ExitDeviceContextManagerLine",
    "EnterDeviceContextManagerWithStreamInfoLine",
    "ExitDeviceContextManagerWithStreamInfoLine",
}


class Captured(BaseException):
    """Ends Inductor's work; no exception of its own handling is like it."""


@dataclass
class Capture:
    """What the model is called, and what became of it."""

    inputs: list[str]
    outputs: list[str]
    weights: Mapping[str, torch.Tensor]
    state: Mapping[str, torch.Tensor] = field(default_factory=dict)
    free: Dimensions = field(default_factory=Dimensions)
    plan: Plan | None = None
    error: Exception | None = None

    def result(self) -> Plan:
        """The plan, or why there is none."""
        if self.error is not None:
            raise self.error
        if self.plan is None:
            raise PackageError("PyTorch made no kernels of the model")
        return self.plan


_current: list[Capture] = []


@contextlib.contextmanager
def capturing(capture: Capture) -> Iterator[None]:
    """Registers the backend below for the time of one compilation."""
    from torch._inductor.codegen import common
    from torch._inductor.codegen.cuda_combined_scheduling import CUDACombinedScheduling

    common.init_backend_registration()
    before = common.device_codegens.get("cuda")
    common.register_backend_for_device("cuda", CUDACombinedScheduling, lines.PythonWrapperCodegen, None, PlanCodegen)
    _current.append(capture)
    try:
        yield
    finally:
        _current.pop()
        if before is not None:
            common.device_codegens["cuda"] = before


class PlanCodegen(WrapperFxCodegen):
    """Inductor's backend: keeps the lines and stops."""

    def _generate(self, is_inference: bool) -> Any:
        capture = _current[-1]
        try:
            if self.is_subgraph:
                raise Unsupported("torch.cond or a loop", "the steps of a function do not depend on data")
            self.run_wrapper_ir_passes(is_inference)
            capture.plan = _Lines(self, capture).plan()
        except Exception as error:
            capture.error = error
        raise Captured


@dataclass(frozen=True)
class _Array:
    """Where a buffer of Inductor's lies."""

    pointer: Pointer
    dtype: torch.dtype


@dataclass
class _Lines:
    """Reads the lines of one graph, in order."""

    codegen: PlanCodegen
    capture: Capture
    result: Plan = field(default_factory=Plan)
    arrays: dict[str, _Array] = field(default_factory=dict)
    symbols: dict[sympy.Symbol, Size] = field(default_factory=dict)
    tuners: dict[str, Any] = field(default_factory=dict)

    def plan(self) -> Plan:
        self.read_inputs()
        self.read_constants()
        for line in self.codegen.lines:
            self.read(line)
        self.read_outputs()
        return self.result

    # Inputs, weights, outputs

    def read_inputs(self) -> None:
        nodes = list(self.codegen.get_fx_graph_inputs().values())
        tensors = [node for node in nodes if isinstance(node, ir.TensorBox)]
        names = list(self.capture.inputs)
        if len(nodes) == len(names):
            # An input that the model does not use is None here.
            pairs = [(name, node) for name, node in zip(names, nodes, strict=True) if node is not None]
        elif len(tensors) == len(names):
            pairs = list(zip(names, tensors, strict=True))
        else:
            raise PackageError(f"the model has inputs {names}, PyTorch made {len(tensors)} of them")
        self.result.inputs = names
        for name, node in pairs:
            self.arrays[node.get_name()] = _Array(Pointer(name), node.get_dtype())
        arrays = {name: (list(node.get_size()), node.get_dtype().itemsize) for name, node in pairs}
        self.symbols |= dimensions.told(arrays, self.capture.free)
        self.result.guards |= dimensions.guards(self.symbols, self.capture.free)
        for name, node in pairs:
            # Where bytes tell a dimension, a call whose bytes are no whole number of rows is refused.
            shape = tuple(self.size(size) for size in node.get_size())
            self.result.types[name] = ArrayType(dtype_name(node.get_dtype()), shape)

    def read_constants(self) -> None:
        for name, buffer in self.capture.state.items():
            self.result.state[name] = self.stored(name, buffer, buffer.stride()).nbytes
        for name, value in V.graph.constants.items():
            full_name = V.graph.allocated_constant_name.get(name, name)
            self.arrays[name] = _Array(Pointer(full_name), value.dtype)
            if full_name in self.capture.state:
                continue
            weight = self.capture.weights.get(full_name)
            if weight is None and type(value) is torch.Tensor:
                weight = value
            if weight is None:
                raise PackageError(f"PyTorch made a constant {full_name!r} that the model does not have")
            self.result.weights[full_name] = self.stored(full_name, weight, value.stride())

    def stored(self, name: str, tensor: torch.Tensor, strides: tuple[int, ...]) -> Any:
        """A weight or a buffer of the state as it lies there; what it is stands in the plan."""
        array, self.result.types[name], order = _stored(tensor, strides)
        if order is not None:
            self.result.orders[name] = order
        return array

    def read_outputs(self) -> None:
        renamed: dict[str, str] = {}
        for name, node in zip(self.capture.outputs, self.codegen.get_graph_outputs(), strict=True):
            array = self.view(node)
            shape = tuple(self.size(size) for size in node.get_size())
            dtype = dtype_name(array.dtype)
            kind, bytes_ = ArrayType(dtype, shape), dense_bytes(dtype, shape)
            base = array.pointer.buffer
            own = base in self.result.buffers and base not in renamed and self.result.buffers[base] == bytes_
            if own and sizes.known(array.pointer.offset) == 0:
                renamed[base] = name
            else:
                self.result.buffers[name] = bytes_
                self.result.steps.append(Copy(array.pointer, Pointer(name), bytes_))
            self.result.types[name] = kind
        self.result.outputs = list(self.capture.outputs)
        self.rename(renamed)

    def rename(self, names: Mapping[str, str]) -> None:
        """Calls buffers that are outputs what the model's outputs are called."""
        plan = self.result
        taken = {*plan.inputs, *plan.weights, *plan.state}
        clash = taken & {*self.capture.outputs}
        if clash:
            raise PackageError(f"inputs, weights or state are called as outputs are: {sorted(clash)}")
        plan.buffers = {names.get(name, name): size for name, size in plan.buffers.items()}
        plan.steps = [map_pointers(step, lambda p: Pointer(names.get(p.buffer, p.buffer), p.offset)) for step in plan.steps]

    # Lines

    def read(self, line: Any) -> None:
        kind = type(line).__name__
        if kind in _IGNORED or isinstance(line, LineContext):
            return
        if isinstance(line, str):
            self.read_text(line)
        elif isinstance(line, lines.AllocateLine):
            if getattr(line, "comm_buffer", False):
                raise Unsupported("communication between devices", "a function runs on one device")
            self.allocate(line.node)
        elif isinstance(line, lines.ReuseLine):
            self.arrays[line.reused_as.get_name()] = self.arrays[line.node.get_name()]
        elif isinstance(line, lines.ReinterpretLine):
            layout = line.layout.view.layout if isinstance(line.layout, ir.NonOwningLayout) else line.layout
            self.arrays[line.reused_as.get_name()] = self.moved(line.node.get_name(), layout)
        elif isinstance(line, lines.KernelDefinitionLine):
            self.define(line)
        elif isinstance(line, lines.KernelCallLine):
            self.launch(line)
        elif isinstance(line, lines.SymbolicCallArgLine):
            self.symbols[line.arg.inner] = self.size(line.arg.inner_expr)
        elif isinstance(getattr(line, "node", None), ir.RandomSeeds):
            self.seed(line.node)
        else:
            self.refuse(line)

    def seed(self, node: Any) -> None:
        """What random numbers are computed from is an input of the function: a call alone decides what it computes."""
        given = node.get_name()
        name = unused_name("seed", {*self.result.names(), *self.capture.outputs})
        self.result.buffers.pop(self.arrays[given].pointer.buffer)
        self.arrays[given] = _Array(Pointer(name), torch.int64)
        self.result.inputs.append(name)
        self.result.types[name] = ArrayType("i64", tuple(self.size(size) for size in node.get_size()))

    def read_text(self, line: str) -> None:
        text = line.strip()
        zeroed = re.fullmatch(r"(\w+)\.zero_\(\)", text)
        if zeroed and zeroed.group(1) in self.arrays:
            array = self.arrays[zeroed.group(1)]
            self.result.steps.append(Fill(array.pointer, self.result.buffers[array.pointer.buffer]))
        elif text and not text.startswith("#"):
            raise Unsupported(f"a line of PyTorch's program: {text}", "it has no form in a function")

    def allocate(self, node: Any) -> None:
        name, dtype = node.get_name(), node.get_dtype()
        elements = V.graph.get_allocation_storage_size(node)
        self.result.buffers[name] = sizes.product([self.size(elements), sizes.absolute(dtype.itemsize)])
        self.arrays[name] = _Array(Pointer(name), dtype)

    def define(self, line: Any) -> None:
        """Compiles the kernel's Python source into a Triton function; no machine code is made."""
        from torch._inductor.codecache import PyCodeCache

        prologue = "\n".join([self.codegen.imports.getvalue(), self.codegen.header.getvalue()])
        code = lines.PythonWrapperCodegen._format_kernel_definition(line.kernel_name, line.kernel_body, metadata=line.metadata)
        kernel = getattr(PyCodeCache.load(f"{prologue}\n{code}"), line.kernel_name)
        if hasattr(kernel, "result"):
            kernel = kernel.result()
        if not getattr(kernel, "compile_results", None):
            raise Unsupported(f"kernel {line.kernel_name}", "it is no Triton kernel")
        self.tuners[line.kernel_name] = kernel
        # The first configuration is the one Inductor thinks best where it measures nothing.
        source = kernel.compile_results[0].kernel
        self.result.kernels[line.kernel_name] = KernelSource(
            function=source.src.fn,
            signature=dict(source.src.signature),
            constants=dict(source.src.constants),
            attributes=dict(source.src.attrs),
            options=source.options,
        )

    def launch(self, line: Any) -> None:
        if not line.triton:
            raise Unsupported(f"kernel {line.kernel_name}", "it is no Triton kernel")
        tuner = self.tuners[line.kernel_name]
        kernel = self.result.kernels[line.kernel_name]
        config = tuner.compile_results[0].config
        raw = line.raw_args if line.raw_args is not None else [None] * len(line.call_args)
        values = [self.value(arg, node) for arg, node in zip(line.call_args, raw, strict=True)]
        extra = list(tuner.inductor_meta.get("extra_launcher_args", ()))
        given, behind = (values[: -len(extra)], values[-len(extra) :]) if extra else (values, [])

        # Kernels of Inductor's are passed all but their block sizes, those of users all but constants; a 1, of which Triton
        # makes a constant, is passed or not.
        forms = (
            [name for name in kernel.signature if name not in config.kwargs],
            [name for name, _ in kernel.parameters],
            [parameter.name for parameter in kernel.function.params if not parameter.is_constexpr],
        )
        passed = next((names for names in forms if len(names) == len(given)), None)
        if passed is None:
            raise PackageError(f"kernel {line.kernel_name} takes {len(kernel.parameters)} values, it is given {len(given)}")
        named = dict(zip(passed, given, strict=True))
        scope = {k: v for k, v in named.items() if not isinstance(v, Pointer)} | dict(zip(extra, behind, strict=True))
        arguments = {
            name: value if isinstance(value, Pointer | float) else self.number(value)
            for name, value in named.items()
            if kernel.signature[name] != "constexpr"
        }
        launch = Launch(line.kernel_name, arguments, self.grid(tuner, config, scope))
        self.result.steps += recurrent.all_steps(launch, kernel) if recurrent.is_step(launch.kernel) else [launch]

    def grid(self, tuner: Any, config: Any, scope: Mapping[str, Any]) -> tuple[Size, Size, Size]:
        from torch._inductor.runtime.triton_heuristics import GridExpr

        blocks = GridExpr.from_meta(tuner.inductor_meta, config).eval_slow({**config.kwargs, **scope})
        x, y, z = (self.size(count) for count in blocks)
        return x, y, z

    def value(self, arg: Any, node: Any) -> Any:
        """A pointer, a float, or a whole number, perhaps as an expression."""
        if isinstance(arg, lines.SymbolicCallArg):
            return arg.inner_expr
        if not isinstance(arg, str):
            return arg
        if arg in self.arrays:
            return self.arrays[arg].pointer
        if isinstance(node, ir.IRNode):
            return self.view(node).pointer
        symbol = next((known for known in self.symbols if str(known) == arg), None)
        if symbol is not None:
            return symbol
        raise PackageError(f"PyTorch passes {arg!r} to a kernel, which is no buffer")

    def number(self, value: Any) -> Size | int:
        """Literals may be negative, expressions are sizes."""
        expr = sympy.sympify(value)
        return int(expr) if expr.is_Integer else self.size(expr)

    def size(self, expression: Any) -> Size:
        return expressions.to_size(expression, self.symbols)

    def view(self, node: Any) -> _Array:
        """The buffer behind a view, and where in it."""
        if isinstance(node, ir.MutableBox):
            return self.view(node.data)
        if isinstance(node, ir.ReinterpretView):
            base = node.data
            while isinstance(base, ir.MutableBox):
                base = base.data
            return self.moved(base.get_name(), node.layout)
        if isinstance(node, ir.NoneAsConstantBuffer | ir.ShapeAsConstantBuffer):
            raise Unsupported("an output that is no tensor", "outputs of functions are tensors")
        return self.arrays[node.get_name()]

    def moved(self, name: str, layout: Any) -> _Array:
        base = self.arrays[name]
        offset = sizes.product([self.size(layout.offset), sizes.absolute(layout.dtype.itemsize)])
        pointer = Pointer(base.pointer.buffer, sizes.total([base.pointer.offset, offset]))
        return _Array(pointer, layout.dtype)

    def refuse(self, line: Any) -> None:
        node = getattr(line, "node", None)
        name = getattr(node, "op_overload", None) or getattr(node, "python_kernel_name", None)
        why = f"it has no Triton form: PyTorch leaves it to a library of its own; {_INSTEAD}, or have calls bring its result"
        library = getattr(name, "namespace", "aten")
        if library not in ("aten", "prims", "torchvision"):
            why = f"{library} brings it, and PyTorch does not see what it computes: {_INSTEAD}, or as a triton_op"
        if isinstance(line, lines.SwitchLine) or type(line).__name__ in ("EnterSubgraphLine", "ExitSubgraphLine"):
            raise Unsupported("torch.cond or a loop", "the steps of a function do not depend on data")
        if isinstance(line, lines.DynamicScalarLine | lines.UnbackedSymbolDefsLine):
            why = "sizes of a function come from its inputs' sizes; a place to read or write is an index of shape (1,), not ()"
            raise Unsupported("a size or place that is computed from data", why, _where(node))
        raise Unsupported(_described(str(name or type(line).__name__), node), why, _where(node))


def _stored(weight: torch.Tensor, strides: tuple[int, ...]) -> tuple[Any, ArrayType, tuple[int, ...] | None]:
    """A weight as a numpy array whose bytes lie as kernels read them, and the order of its dimensions, if it is another."""
    weight, order = weight.detach().cpu(), None
    lies = torch.empty_strided(weight.shape, strides, device="meta")
    if weight.numel() and not lies.is_contiguous():
        order = tuple(sorted(range(weight.dim()), key=lambda at: (-strides[at], at)))
        if lies.permute(order).is_contiguous():
            weight = weight.permute(order)
        else:
            # With gaps, or parts that are there several times.
            extent = 1 + sum((size - 1) * stride for size, stride in zip(weight.shape, strides, strict=True))
            weight, order = weight.as_strided((extent,), (1,)), None
    shape = tuple(sizes.absolute(size) for size in weight.shape)
    kind = ArrayType(dtype_name(weight.dtype), shape)
    if kind.dtype in NOT_NUMPYS:
        weight = bits(weight)
    return weight.contiguous().numpy(), kind, order


def _where(node: Any) -> str | None:
    """The line of the model that an operator came from; its module, where no line is the user's."""
    origins = list(getattr(node, "origins", None) or [])
    origin = getattr(node, "origin_node", None)
    found = [place_of(fx_node) for fx_node in ([origin, *origins] if origin is not None else origins)]
    return next((place for place in found if place), None)


def place_of(fx_node: Any) -> str | None:
    """The line of the model that a node of a graph came from; its module, where no line is the user's."""
    return innermost(fx_node.meta.get("stack_trace") or getattr(fx_node, "stack_trace", None) or "") or _module(fx_node)


def _module(fx_node: Any) -> str | None:
    """The innermost module that a node belongs to, such as ``features.0, a Conv1d``."""
    stack = list((fx_node.meta.get("nn_module_stack") or {}).values())
    if not stack:
        return None
    path, kind = stack[-1][:2]
    called = kind if isinstance(kind, str) else kind.__name__
    return f"{path or 'the model'}, a {called.rpartition('.')[2]}"


def _described(name: str, node: Any) -> str:
    """An operator's name, of convolutions with what sets them apart."""
    nodes = [getattr(node, "origin_node", None), *(getattr(node, "origins", None) or [])]
    origin = next((each for each in nodes if each is not None and each.target is torch.ops.aten.convolution.default), None)
    if "convolution" not in name or origin is None:
        return name
    _, weight, _, stride, _, dilation, transposed, _, groups = origin.args[:9]
    dimensions = len(weight.meta["val"].shape) - 2 if hasattr(weight, "meta") and "val" in weight.meta else len(stride)
    told = [f"{dimensions} dimensions", "transposed" if transposed else "", f"groups {groups}" if groups != 1 else ""]
    told.append(f"dilation {max(dilation)}" if max(dilation) != 1 else "")
    return f"{name} ({', '.join(each for each in told if each)})"


def innermost(trace: str) -> str | None:
    """``file:line: code`` of the last frame of a stack trace that is not PyTorch's own."""
    frames = re.findall(r'File "([^"]+)", line (\d+), in [^\n]*\n\s*([^\n]*)', trace)
    own = [frame for frame in frames if is_the_users(frame[0])]
    if not own:
        return None
    file, line, code = own[-1]
    return f"{file}:{line}: {code.strip()}"


def is_the_users(file: str) -> bool:
    """Whether a file of a stack trace is neither PyTorch's own, nor ours, nor a program that PyTorch made."""
    others = "/torch/" in file or "/torchvision/ops/" in file or Path(file).parent == _HERE
    return not others and not file.startswith(("<eval_with_key>", "<string>"))
