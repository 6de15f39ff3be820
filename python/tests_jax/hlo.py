"""Runs a package of JAX's on the processor: each kernel by the instruction of XLA's that it was made of, with numpy.

What machine code does is not seen here, and neither are grids. Everything else of a package is: which bytes of which buffer
each launch takes, in which order, copies, loops, weights.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from pappus.package import Package, sizes, targets, xla_hlo, xla_lowering, xla_messages, xla_plan

NUMPY: dict[str, Any] = {
    "PRED": np.bool_,
    "BF16": ml_dtypes.bfloat16,
    **{f"S{bits}": f"i{bits // 8}" for bits in (8, 16, 32, 64)},
    **{f"U{bits}": f"u{bits // 8}" for bits in (8, 16, 32, 64)},
    **{f"F{bits}": f"f{bits // 8}" for bits in (16, 32, 64)},
}

UNARY = {
    "abs": np.abs,
    "negate": np.negative,
    "exponential": np.exp,
    "exponential-minus-one": np.expm1,
    "log": np.log,
    "log-plus-one": np.log1p,
    "tanh": np.tanh,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sine": np.sin,
    "cosine": np.cos,
    "not": np.logical_not,
    "logistic": lambda x: 1 / (1 + np.exp(-x)),
    "erf": np.vectorize(math.erf, otypes=[np.float64]),
}
BINARY = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "power": np.power,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}
COMPARE = {
    "EQ": np.equal,
    "NE": np.not_equal,
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
}


def dtype_of(shape: Any) -> Any:
    kinds = shape.DESCRIPTOR.fields_by_name["element_type"].enum_type.values_by_number
    return np.dtype(NUMPY[kinds[shape.element_type].name])


def from_bytes(raw: bytes, shape: Any) -> np.ndarray:
    """An array of the instruction's shape from bytes in its layout."""
    dims, order = list(shape.dimensions), list(shape.layout.minor_to_major)
    physical = np.frombuffer(raw, dtype_of(shape)).reshape([dims[at] for at in reversed(order)])
    return physical.transpose(np.argsort(list(reversed(order))))


def to_bytes(array: np.ndarray, shape: Any) -> bytes:
    order = list(reversed(shape.layout.minor_to_major))
    return np.ascontiguousarray(array.astype(dtype_of(shape)).transpose(order)).tobytes()


class Module:
    """XLA's instructions, evaluated by name."""

    def __init__(self, module: Any) -> None:
        self.computations = {each.id: each for each in module.computations}
        self.named = {each.name: each for computation in module.computations for each in computation.instructions}
        self.by_id = {each.id: each for computation in module.computations for each in computation.instructions}

    def run(self, instruction: Any, operands: Sequence[np.ndarray]) -> list[np.ndarray]:
        """All results of an instruction."""
        found = self.value(instruction, list(operands))
        return list(found) if isinstance(found, tuple) else [found]

    def call(self, number: int, arguments: Sequence[Any]) -> Any:
        computation = self.computations[number]
        values: dict[int, Any] = {}
        for each in computation.instructions:
            if each.opcode == "parameter":
                values[each.id] = arguments[each.parameter_number]
            else:
                values[each.id] = self.value(each, [values[operand] for operand in each.operand_ids])
        return values[computation.root_id]

    def value(self, of: Any, operands: list[Any]) -> Any:
        code, shape = of.opcode, of.shape
        if code in ("fusion", "call"):
            return self.call(of.called_computation_ids[0], operands)
        if code == "tuple":
            return tuple(operands)
        if code == "get-tuple-element":
            return operands[0][of.tuple_index]
        dtype, dims = dtype_of(shape), tuple(shape.dimensions)
        with np.errstate(all="ignore"):
            return self.array(of, code, operands, dims).astype(dtype, copy=False).reshape(dims)

    def array(self, of: Any, code: str, operands: list[np.ndarray], dims: tuple[int, ...]) -> np.ndarray:
        if code in UNARY:
            return np.asarray(UNARY[code](operands[0]))
        if code in BINARY:
            return np.asarray(BINARY[code](*operands))
        if code == "compare":
            return np.asarray(COMPARE[of.comparison_direction](*operands))
        if code == "select":
            return np.where(*operands)
        if code == "clamp":
            return np.clip(operands[1], operands[0], operands[2])
        if code in ("convert", "copy", "reshape"):
            return operands[0].reshape(dims)
        if code == "bitcast":
            operand = self.by_id[of.operand_ids[0]]
            return from_bytes(to_bytes(operands[0], operand.shape), of.shape)
        if code == "transpose":
            return operands[0].transpose(list(of.dimensions))
        if code == "constant":
            return from_bytes(xla_hlo.literal_bytes(of.literal), of.shape)
        if code == "iota":
            at = of.dimensions[0]
            return np.broadcast_to(np.arange(dims[at]).reshape([-1 if d == at else 1 for d in range(len(dims))]), dims)
        if code == "broadcast":
            kept = dict(zip(of.dimensions, operands[0].shape, strict=True))
            return np.broadcast_to(operands[0].reshape([kept.get(at, 1) for at in range(len(dims))]), dims)
        if code == "reduce":
            reducer = self.computations[of.called_computation_ids[0]]
            (how,) = [each.opcode for each in reducer.instructions if each.opcode in BINARY]
            values = operands[0] if operands[0].dtype.kind in "iub" else operands[0].astype(np.float64)
            return np.asarray(BINARY[how](BINARY[how].reduce(values, axis=tuple(of.dimensions)), operands[1]))
        if code == "dot":
            return self.dot(of.dot_dimension_numbers, *operands)
        if code == "slice":
            return operands[0][tuple(slice(d.start, d.limit, d.stride) for d in of.slice_dimensions)]
        if code == "dynamic-slice":
            taken = list(of.dynamic_slice_sizes)
            return operands[0][self.window(operands[0].shape, taken, operands[1:])]
        if code == "dynamic-update-slice":
            out = operands[0].copy()
            out[self.window(out.shape, operands[1].shape, operands[2:])] = operands[1]
            return out
        if code == "concatenate":
            return np.concatenate(operands, of.dimensions[0])
        raise NotImplementedError(f"{code} has no value here: add it")

    @staticmethod
    def window(shape: Sequence[int], taken: Sequence[int], starts: Sequence[Any]) -> tuple[slice, ...]:
        begin = [min(max(int(start), 0), have - take) for start, have, take in zip(starts, shape, taken, strict=True)]
        return tuple(slice(at, at + take) for at, take in zip(begin, taken, strict=True))

    @staticmethod
    def dot(how: Any, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        letters = iter("abcdefghijklmnopqrstuvwxyz")
        a, b = [next(letters) for _ in left.shape], [next(letters) for _ in right.shape]
        for x, y in [
            *zip(how.lhs_batch_dimensions, how.rhs_batch_dimensions, strict=True),
            *zip(how.lhs_contracting_dimensions, how.rhs_contracting_dimensions, strict=True),
        ]:
            b[y] = a[x]
        batch = [a[x] for x in how.lhs_batch_dimensions]
        summed = {a[x] for x in how.lhs_contracting_dimensions}
        out = "".join([*batch, *(x for x in [*a, *b] if x not in batch and x not in summed)])
        wide = [left.astype(np.float64), right.astype(np.float64)]
        return np.einsum(f"{''.join(a)},{''.join(b)}->{out}", *wide, optimize=True)


class Run:
    """One call of a package."""

    def __init__(self, built: Package, executable: Any, kernels: Mapping[str, xla_plan.MachineKernel]) -> None:
        self.blueprint = built.blueprint
        self.kernels = kernels
        self.module = Module(executable.hlo_module_with_config.hlo_module)
        self.made_of = dict(_launched(executable.thunks))
        self.weights = {name: weight.array.tobytes() for name, weight in built.weights.items()}

    def __call__(self, **inputs: Any) -> dict[str, np.ndarray]:
        # What nothing wrote is no number.
        self.memory = {name: bytearray(b"\xff" * size["Absolute"]) for name, size in self.blueprint["buffers"].items()}
        self.memory |= {name: bytearray(np.asarray(value).tobytes()) for name, value in inputs.items()}
        self.memory |= {name: bytearray(content) for name, content in self.weights.items()}
        assert set(inputs) == set(self.blueprint["inputs"])
        self.steps(self.blueprint["control_flow"])
        return {name: self.output(name) for name in self.blueprint["outputs"]}

    def output(self, name: str) -> np.ndarray:
        kind = self.blueprint["types"][name]
        formats = {"bool": np.bool_, "bf16": ml_dtypes.bfloat16}
        dtype = formats.get(kind["dtype"], re.sub(r"\d+", lambda bits: str(int(bits[0]) // 8), kind["dtype"]))
        return np.frombuffer(bytes(self.memory[name]), dtype).reshape([size["Absolute"] for size in kind["shape"]])

    def steps(self, flow: Sequence[Any]) -> None:
        for action in flow:
            ((kind, body),) = action.items()
            if kind == "Repeat":
                for _ in range(body[0]["Absolute"]):
                    self.steps(body[1])
            elif kind == "Copy":
                number = body["bytes"]["Absolute"]
                self.write(body["to"], body["to_offset"], self.read(body["from"], body["from_offset"], number))
            elif kind == "Fill":
                self.write(body["buffer"], body["offset"], bytes([body["byte"]]) * body["bytes"]["Absolute"])
            else:
                self.launch(body[0], body[1])

    def launch(self, name: str, arguments: Sequence[Any]) -> None:
        instruction = self.module.named[self.made_of[name]]
        places = [self.place(argument) for argument in arguments]
        shapes = list(instruction.shape.tuple_shapes or [instruction.shape])
        operands = [self.module.by_id[at] for at in instruction.operand_ids]
        # A buffer that is taken twice is one parameter.
        unique = list(dict.fromkeys(self.source(at) for at in instruction.operand_ids))
        if len(places) == len(operands) + len(shapes):
            given = dict(zip(instruction.operand_ids, places, strict=False))
        else:
            held = dict(zip(unique, places, strict=False))
            given = {at: held[self.source(at)] for at in instruction.operand_ids}
        apart = len(places) >= len(unique) + len(shapes)
        written = places[-len(shapes) :] if apart else self.changed(name, places, len(shapes))
        values = [from_bytes(self.read(*given[operand.id], self.bytes(operand.shape)), operand.shape) for operand in operands]
        results = self.module.run(instruction, values)
        for place, shape, result in zip(written, shapes, results, strict=True):
            self.write(*place, to_bytes(result, shape))

    def changed(self, name: str, places: list[Any], count: int) -> list[Any]:
        found = [places[at] for at in sorted(self.kernels[name].written)]
        assert len(found) == count, f"{name}: which of its parameters are results is not known"
        return found

    def source(self, at: int) -> Any:
        """What an operand is, but for its shape."""
        of = self.module.by_id[at]
        while of.opcode == "bitcast":
            of = self.module.by_id[of.operand_ids[0]]
        return (of.operand_ids[0], of.tuple_index) if of.opcode == "get-tuple-element" else of.id

    @staticmethod
    def bytes(shape: Any) -> int:
        return math.prod(shape.dimensions) * dtype_of(shape).itemsize

    @staticmethod
    def place(argument: Mapping[str, Any]) -> tuple[str, Any]:
        pointer = argument["Ptr"]
        return (pointer, sizes.absolute(0)) if isinstance(pointer, str) else (pointer["buffer"], pointer["offset"])

    def read(self, buffer: str, offset: Any, number: int) -> bytes:
        start = offset["Absolute"]
        assert start + number <= len(self.memory[buffer])
        return bytes(self.memory[buffer][start : start + number])

    def write(self, buffer: str, offset: Any, content: bytes) -> None:
        start = offset["Absolute"]
        assert buffer in self.blueprint["buffers"], f"{buffer} is read only"
        assert start + len(content) <= len(self.memory[buffer])
        self.memory[buffer][start : start + len(content)] = content


def _launched(thunks: Sequence[Any]) -> Any:
    """Kernels, and the instruction that each is made of."""
    for thunk in thunks:
        kind = thunk.WhichOneof("impl")
        body = getattr(thunk, kind)
        if kind == "custom_kernel_thunk":
            yield body.custom_kernel.kernel_spec.kernel_name, thunk.thunk_info.profile_annotation
        elif kind == "kernel_thunk":
            yield body.kernel_name, thunk.thunk_info.profile_annotation
        elif kind == "while_thunk":
            yield from _launched(body.body_thunk_sequence.thunks)
        elif kind == "async_start_thunk":
            yield from _launched(body.thunks.thunks)
        elif kind == "sequential_thunk":
            yield from _launched(body.thunks)
        elif kind == "dynamic_slice_fusion_thunk":
            yield from _launched(body.embedded_thunks.thunks)


def runnable(function: Any, example_inputs: Sequence[Any], built: Package, weights: Any = None) -> Run:
    """The package with what its kernels are made of, which packages do not keep: compiled once more."""
    (target,) = targets.parse("sm_90")
    messages = xla_messages.Messages(xla_messages.find_library())
    traced = xla_lowering.trace(function, example_inputs, weights)
    executable = xla_lowering.compile_for(traced, target, target, messages)
    _, kernels = xla_plan.read(executable, traced.parameters, traced.types, traced.outputs)
    assert {f"modules/{name}.sm_90a.cubin": kernel.code for name, kernel in kernels.items()} == built.modules
    return Run(built, executable, kernels)
