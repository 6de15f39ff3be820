"""What a function takes and gives, and how the inputs and outputs of a call of certain sizes lie in a block."""

from __future__ import annotations

import inspect
import keyword
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from pappus import _arrays
from pappus._arrays import Array
from pappus._pool import aligned, block_size
from pappus._proto import pappus_pb2 as v1
from pappus._sizes import Blueprint, Sizes
from pappus.errors import InvalidArgument

# What is set aside for an output of a size that cannot be computed here; memory is taken as it is written to.
UNKNOWN_OUTPUT_BYTES = 64 << 20
_WORD = 8


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output of a function."""

    name: str
    dtype: np.dtype[Any] | None
    """Its element type; ``None`` where neither the function nor the caller declares one."""
    shape: tuple[int | str | None, ...] | None = None
    """Its dimensions, where they are declared: a number, the name of a free one, or ``None`` for what a call computes."""

    def __str__(self) -> str:
        """As in ``A: f32[n, 3]``; ``…`` is a dimension that is computed."""
        return f"{self.name}: {self.type}" if self.type else self.name

    @property
    def type(self) -> str:
        """As in ``f32[n, 3]``; empty where none is declared."""
        return "" if self.dtype is None else _arrays.text_of(self.dtype, self.shape).replace(",", ", ")


@dataclass(slots=True)
class Layout:
    """Where the inputs and outputs of calls of certain sizes lie in a block."""

    # (offset, bytes) in the order of the signature.
    inputs: list[tuple[int, int]]
    outputs: list[tuple[int, int]]
    # Element types and shapes of inputs with free dimensions, which must come with the call.
    types: list[v1.ArrayType | None]
    # Whether the outputs have exactly these bytes, or at most.
    exact: bool
    # Of all, and of the block that they take.
    size: int
    block: int
    # Requests that were sent, by where they are in memory: the same is used again and again, and its request with it.
    requests: dict[object, bytes] = field(default_factory=dict)


class Signature:
    """A function's inputs and outputs, from what the supervisor tells of it and what the caller adds."""

    def __init__(self, info: v1.FunctionInfo, dtypes: Mapping[str, npt.DTypeLike | str] | None = None) -> None:
        self.name = info.name
        self.version = info.version
        self._info = info
        self._blueprint = Blueprint(info.config)
        self._given = dict(dtypes or {})
        declared = {output.name: output.dtype for output in info.outputs}
        # What is told of functions with many names lacks them; their configuration has them.
        inputs = info.inputs or self._blueprint.inputs
        if not info.config:
            for name, told in zip(info.inputs, info.input_types, strict=False):
                self._blueprint.declare(name, told.dtype, _dims(told))
            for output in info.outputs:
                self._blueprint.declare(output.name, output.dtype, _dims(output))
        outputs = declared or self._blueprint.outputs
        self.inputs = tuple(Port(name, self._dtype(name, None), self._shape(name)) for name in inputs)
        self.outputs = tuple(Port(name, self._dtype(name, declared), self._shape(name)) for name in outputs)
        unknown = self._given.keys() - {port.name for port in (*self.inputs, *self.outputs)}
        if unknown:
            raise InvalidArgument(f"{self.name} has no input or output {sorted(unknown)[0]!r}: {self}")
        names = [port.name for port in self.inputs]
        self._words = [(names.index(name), at) for name, at in self._blueprint.words if name in names]

    def __str__(self) -> str:
        """As in ``A: f32[n, 3], B: f32 → C: f32[…]``; ``…`` is a dimension that is computed."""

        def side(ports: Sequence[Port]) -> str:
            return ", ".join(map(str, ports)) or "()"

        return f"{side(self.inputs)} → {side(self.outputs)}"

    def renewed(self, info: v1.FunctionInfo) -> Signature:
        """The same name and types of the caller's, for what the function is now."""
        return Signature(info, self._given)

    def for_python(self) -> inspect.Signature:
        """The inputs as parameters of Python, annotated with their types, and the outputs.

        Names that Python does not take are those of one ``**inputs``.
        """
        kind = inspect.Parameter
        names = [port.name for port in self.inputs]
        if all(name.isidentifier() and not keyword.iskeyword(name) for name in names) and len(set(names)) == len(names):
            given = [kind(p.name, kind.POSITIONAL_OR_KEYWORD, annotation=p.type or kind.empty) for p in self.inputs]
        else:
            given = [kind("arrays", kind.VAR_POSITIONAL), kind("inputs", kind.VAR_KEYWORD)]
        one = self.outputs[0].type or "u8" if len(self.outputs) == 1 else ""
        several = ", ".join(map(str, self.outputs))
        return inspect.Signature(given, return_annotation=one or f"dict[{several}]")

    def with_dtypes(self, dtypes: Mapping[str, npt.DTypeLike | str]) -> Signature:
        """The same, with types of the caller's."""
        return Signature(self._info, {**self._given, **dtypes})

    def arrays(self, given: Sequence[object], named: Mapping[str, object]) -> list[Array]:
        """The inputs in their order, as arrays."""
        if len(given) + len(named) != len(self.inputs):
            self._refuse_inputs(given, named)
        if named:
            try:
                given = [*given, *(named[port.name] for port in self.inputs[len(given) :])]
            except KeyError:
                self._refuse_inputs(given, named)
        return [
            # What is almost always given needs no more than a look.
            value
            if type(value) is np.ndarray and value.dtype is port.dtype
            else _arrays.as_input(port.name, value, port.dtype, port.shape)
            for port, value in zip(self.inputs, given, strict=True)
        ]

    def words(self, arrays: Sequence[Array]) -> tuple[int, ...]:
        """The words of the inputs that sizes are computed from."""
        return tuple(_word(arrays[input], at) for input, at in self._words) if self._words else ()

    def layout(self, arrays: Sequence[Array], words: Sequence[int], outs: Sequence[Array | None]) -> Layout:
        """Lays out a call with such inputs, whose outputs go to these; refuses shapes that are not those of the function."""
        names = [port.name for port in self.inputs]
        free: dict[str, int] = {}
        types = [self._bind(port, array, free) for port, array in zip(self.inputs, arrays, strict=True)]
        numbers = {(names[input], at): word for (input, at), word in zip(self._words, words, strict=True)}
        sizes = Sizes(self._blueprint, dict(zip(names, (a.nbytes for a in arrays), strict=True)), numbers, free)
        for port, array in zip(self.inputs, arrays, strict=True):
            if port.dtype is not None:
                given = array.nbytes if _arrays.is_bytes(array, port.dtype) else array
                _arrays.check_shape(port.name, given, port.dtype, sizes.dims_of(port.name))
        for port, out in zip(self.outputs, outs, strict=True):
            if port.dtype is not None and out is not None:
                _arrays.check_shape(port.name, out, port.dtype, sizes.dims_of(port.name))
        end, exact = 0, True
        inputs, outputs = [], []
        for array in arrays:
            inputs.append((end, array.nbytes))
            end += aligned(array.nbytes)
        for port, out in zip(self.outputs, outs, strict=True):
            size = sizes.bytes_of(port.name)
            exact &= size is not None
            if size is None:
                size = UNKNOWN_OUTPUT_BYTES if out is None else out.nbytes
            outputs.append((end, size))
            end += aligned(size)
        return Layout(inputs, outputs, types, exact, end, block_size(end))

    def _bind(self, port: Port, array: Array, free: dict[str, int]) -> v1.ArrayType | None:
        """Takes the values of free dimensions from an input; its type and shape, which must come with the call then."""
        dims, shape = port.shape or (), array.shape
        if port.dtype is None or not any(isinstance(dim, str) for dim in dims):
            return None
        if len(dims) == 1:
            # However its elements are arranged, or if they are bytes.
            shape = (array.size,)
        elif _arrays.is_bytes(array, port.dtype):
            raise InvalidArgument(f"bytes came, {port.type} is expected, which needs an array of that shape", place=port.name)
        elif len(dims) != array.ndim:
            _arrays.check_shape(port.name, array, port.dtype, dims)
        for dim, size in zip(dims, shape, strict=True):
            if isinstance(dim, str) and free.setdefault(dim, size) != size:
                raise InvalidArgument(f"dimension {dim!r} is {size} here and {free[dim]} before it", place=port.name)
        return v1.ArrayType(dtype=_arrays.name_of(port.dtype), shape=shape)

    def _shape(self, name: str) -> tuple[int | str | None, ...] | None:
        dims = self._blueprint.dims(name)
        return None if dims is None else tuple(dims)

    def _dtype(self, name: str, declared: Mapping[str, str] | None) -> np.dtype[Any] | None:
        dtype, given = (declared or {}).get(name) or self._blueprint.dtype(name), self._given.get(name)
        known = _arrays.dtype_of(dtype) if dtype else None
        if given is None:
            return known
        asked = _arrays.as_dtype(given)
        if known is not None and asked != known:
            raise InvalidArgument(f"the function declares {dtype}, which {_arrays.name_of(asked)} cannot change", place=name)
        return asked

    def _refuse_inputs(self, given: Sequence[object], named: Mapping[str, object]) -> None:
        names = [port.name for port in self.inputs]
        if len(given) > len(names):
            raise InvalidArgument(f"{len(given)} inputs are given, {self.name} has {len(names)}: {self}")
        twice = [name for name in names[: len(given)] if name in named]
        if twice:
            raise InvalidArgument(f"input {twice[0]!r} is given twice")
        unknown = [name for name in named if name not in names]
        if unknown:
            raise InvalidArgument(f"{self.name} has no input {unknown[0]!r}: {self}")
        missing = [name for name in names[len(given) :] if name not in named]
        raise InvalidArgument(f"input {missing[0]!r} is missing: {self}")


class OfEachFunction:
    """The signature of a function, as an attribute of its handle; their class has one of its own."""

    def __get__(self, handle: Any, owner: type) -> inspect.Signature:
        if handle is None:
            raise AttributeError("__signature__")
        found: inspect.Signature = handle._bound.signature.for_python()
        return found


def _dims(told: v1.DeclaredType | v1.OutputInfo) -> list[Any] | None:
    """A declared shape as blueprints write it; a formula that is not told is no size."""
    if not told.HasField("shape"):
        return None
    dims: list[Any] = []
    for dim in told.shape.dimensions:
        match dim.WhichOneof("elements"):
            case "fixed":
                dims.append({"Absolute": dim.fixed})
            case "free":
                dims.append({"Free": dim.free})
            case _:
                dims.append(None)
    return dims


def _word(array: Array, at: int) -> int:
    """A 64-bit word of an array's bytes; 0 where it ends before, which the supervisor refuses."""
    data = _arrays.as_sent(array).reshape(-1).view(np.uint8)[at * _WORD : at * _WORD + _WORD]
    return int.from_bytes(data.tobytes(), "little") if len(data) == _WORD else 0
