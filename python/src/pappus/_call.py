"""One call: inputs into shared memory, the request, and arrays from the answer. What clients of either kind share."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt

from pappus import _arrays
from pappus._arrays import Array
from pappus._numbers import shown
from pappus._pool import Block, Lease, Mapped, Pool, aligned, block_size
from pappus._proto import pappus_pb2 as v1
from pappus._signature import Layout, OfEachFunction, Port, Signature
from pappus.errors import InvalidArgument, ProtocolError, Unsupported

# Layouts that a function keeps, and requests that a layout keeps. Beyond them it starts anew.
_KEPT_LAYOUTS = 64
_KEPT_REQUESTS = 64
# Dimensions of an array; NumPy has no more.
_MAX_RANK = 32
_MAX_DIMENSION = 1 << 40

if TYPE_CHECKING:
    from typing_extensions import Self, TypeVar

    R = TypeVar("R", default=Any)
else:
    from typing import TypeVar

    # Before Python 3.13 only type checkers know defaults.
    R = TypeVar("R")

Result: TypeAlias = Array | dict[str, Array]
"""An array, or a dictionary of arrays by output where a function has several."""

# Stands for an option that is not given.
_KEEP: Any = object()
# Where the supervisor refuses a call that was made for what a function was before it was replaced.
REPLACED = "function_version"
# Units of times, as on the command line.
_UNITS_NS = {
    "ns nsec": 1,
    "us usec": 1_000,
    "ms msec": 1_000_000,
    "s sec second seconds": 1_000_000_000,
    "m min minute minutes": 60_000_000_000,
    "h hr hour hours": 3_600_000_000_000,
    "d day days": 86_400_000_000_000,
}
_UNIT_NS = {unit: ns for units, ns in _UNITS_NS.items() for unit in units.split()}
_TIME = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)", re.ASCII)


class OfThisProcess:
    """What belongs to the process that connected: it is not pickled, neither for another process nor for a file."""

    __slots__ = ()

    def __reduce__(self) -> NoReturn:
        kind = type(self).__name__
        raise Unsupported(f"a {kind} belongs to one connection of one process and is not pickled: connect in each process")


@dataclass(frozen=True, slots=True)
class Options:
    """How a function is called."""

    deadline: float | str | None = None
    copy: bool = True
    out: Mapping[str, Array] | None = None
    request_id: str = ""
    # The number of the session that calls are in; 0 where they are in none.
    session: int = 0

    def deadline_ns(self) -> int:
        """As in a request, where 0 means the supervisor's default."""
        if self.deadline is None:
            return 0
        try:
            ns = _time_ns(self.deadline) if isinstance(self.deadline, str) else self.deadline * 1e9
            if ns > 0:
                return max(1, int(min(ns, 1 << 63)))
        except (TypeError, KeyError):
            pass
        raise InvalidArgument(
            f"a deadline of {shown(self.deadline)}: expected more than 0 seconds, or a time such as '1s', '500ms', '1m 30s'"
        )


def _time_ns(text: str) -> float:
    """A time as the command line takes it; ``KeyError`` where it is none."""
    total, at = 0.0, 0
    while part := _TIME.match(text, at):
        total, at = total + float(part[1]) * _UNIT_NS[part[2]], part.end()
    if text[at:].strip():
        raise KeyError(text)
    return total


# An arena, and where in it.
Place = tuple[Mapped, int]


class Prepared:
    """A call that is ready to be sent, with what must stay alive until it is answered."""

    __slots__ = ("_bound", "_keep", "_layout", "_places", "block", "request")

    def __init__(
        self,
        bound: Bound,
        layout: Layout,
        block: Block | None,
        places: Sequence[Place | None],
        request: bytes,
        keep: object,
    ) -> None:
        self._bound = bound
        self._layout = layout
        # Of the outputs, but for those that are written to where the caller wants them.
        self._places = places
        # Arrays in shared memory that the call reads.
        self._keep = keep
        self.block = block
        self.request = request

    def taint(self) -> None:
        """The call was given up and may go on for a while: what it writes to is not used again."""
        if self.block is not None:
            self.block.taint()

    def finish(self, answer: v1.Response) -> Any:
        """The results of the call, from its answer."""
        if answer.WhichOneof("body") != "invoked":
            raise ProtocolError(f"the supervisor answered a call with {answer.WhichOneof('body')}")
        values = answer.invoked.outputs
        ports = self._bound.signature.outputs
        # The supervisor tells outputs in their order; another one is one that it did not keep to.
        if len(values) != len(ports):
            raise ProtocolError(f"the supervisor's answer has {len(values)} outputs, the function {len(ports)}")
        if len(ports) == 1:
            return self._result(0, ports[0], values[0])
        return {port.name: self._result(at, port, values[at]) for at, port in enumerate(ports)}

    def _result(self, at: int, port: Port, value: v1.OutputValue) -> Array:
        size = value.bytes
        _, room = self._layout.outputs[at]
        if value.name != port.name:
            raise ProtocolError(f"the supervisor's answer has output {value.name!r} in the place of {port.name!r}")
        if size > room or (self._layout.exact and size != room):
            raise ProtocolError(f"the supervisor says that output {port.name} has {size} bytes instead of {room}")
        dtype, shape = _type_of(port, value)
        options = self._bound.options
        out = options.out.get(port.name) if options.out else None
        place = self._places[at]
        if out is not None:
            _arrays.check_type(_out(port), out, dtype, shape)
            _arrays.check_shape(_out(port), out, dtype, shape)
            if place is not None:
                np.copyto(out, place[0].view(place[1], dtype, out.shape))
            return out
        if place is None:
            return np.empty(shape, dtype)
        if options.copy or self.block is None:
            copied: Array = place[0].view(place[1], dtype, shape).copy()
            return copied
        lease: Any = Lease(self.block, place[1], size)
        lent: Array = np.asarray(lease).view(dtype)
        return lent.reshape(shape)


class Bound:
    """A function with the options that it is called with."""

    def __init__(self, name: str, signature: Signature, pool: Pool, options: Options) -> None:
        self.name = name
        self.signature = signature
        self.options = options
        self._pool = pool
        self._layouts: dict[Any, Layout] = {}
        self._deadline_ns = options.deadline_ns()
        out = options.out or {}
        unknown = out.keys() - {port.name for port in signature.outputs}
        if unknown:
            raise InvalidArgument(f"{name} has no output {sorted(unknown)[0]!r}: {signature}")
        self._outs = [out.get(port.name) for port in signature.outputs]
        for port, array in zip(signature.outputs, self._outs, strict=True):
            if array is not None:
                _arrays.check_type(_out(port), array, port.dtype, port.shape)

    def but_with(self, dtypes: Mapping[str, npt.DTypeLike | str] | None, options: Mapping[str, Any]) -> Bound:
        """The same function, called otherwise."""
        signature = self.signature.with_dtypes(dtypes) if dtypes else self.signature
        out = options.get("out")
        if out is not None and not isinstance(out, Mapping):
            if len(signature.outputs) != 1:
                raise InvalidArgument(f"{self.name} has several outputs: give `out` by name: {signature}")
            out = {signature.outputs[0].name: out}
            options = {**options, "out": out}
        for name, array in (out or {}).items():
            if not isinstance(array, np.ndarray) or isinstance(array, np.ma.MaskedArray) or not array.flags.writeable:
                raise InvalidArgument("an output needs a NumPy array that can be written", place=f"out {name}")
        return Bound(self.name, signature, self._pool, replace(self.options, **options))

    def within(self, pool: Pool) -> Bound:
        """The same with arrays in these arenas."""
        return self if pool is self._pool else Bound(self.name, self.signature, pool, self.options)

    def renewed(self, info: v1.FunctionInfo) -> Bound | None:
        """The same name and options for what the function is now; none if that is what it was."""
        if info.version == self.signature.version:
            return None
        return Bound(self.name, self.signature.renewed(info), self._pool, self.options)

    def direct(self, array: Array | None, *, written: bool = False) -> Place | None:
        """Where in shared memory an array lies, if it does: such arrays are views.

        What is to be written must lie in an arena of the caller's: a call that was given up may write to it later.
        """
        if array is None or array.base is None:
            return None
        return self._pool.find(array, callers_only=written)

    def prepare(self, given: Sequence[object], named: Mapping[str, object]) -> Prepared | int:
        """A call with its inputs in shared memory, or the size of a block for which there must be room first."""
        signature = self.signature
        arrays = signature.arrays(given, named)
        words = signature.words(arrays)
        key = (words, *[(array.shape, array.dtype) for array in arrays])
        layout = self._layouts.get(key)
        if layout is None:
            layout = signature.layout(arrays, words, self._outs)
            if len(self._layouts) >= _KEPT_LAYOUTS:
                self._layouts.clear()
            self._layouts[key] = layout
        if self.options.out or [1 for array in arrays if array.base is not None]:
            inputs = [self.direct(array) for array in arrays]
            outputs = [self.direct(out, written=True) for out in self._outs]
            if any(inputs) or any(outputs):
                return self._prepare_in_place(layout, arrays, inputs, outputs)
        if not layout.size:
            nothing = [None] * len(self._outs)
            return Prepared(self, layout, None, nothing, self._encode(layout, [None] * len(arrays), nothing), None)
        block = self._pool.take(layout.block)
        if block is None:
            return layout.block
        arena, start = block.arena, block.offset
        for array, (offset, size) in zip(arrays, layout.inputs, strict=True):
            if size:
                arena.fill(start + offset, array)
        places: list[Place | None] = [(arena, start + offset) for offset, _ in layout.outputs]
        request = layout.requests.get((arena.id, start))
        if request is None:
            request = self._encode(layout, [(arena, start + offset) for offset, _ in layout.inputs], places)
            self._keep_request(layout, (arena.id, start), request)
        return Prepared(self, layout, block, places, request, None)

    def _prepare_in_place(
        self, layout: Layout, arrays: Sequence[Array], inputs: list[Place | None], outputs: list[Place | None]
    ) -> Prepared | int:
        """For a call of which some arrays lie in shared memory already."""
        rooms = [size for _, size in layout.outputs]
        for at, (port, out) in enumerate(zip(self.signature.outputs, self._outs, strict=True)):
            if out is not None and outputs[at] is not None:
                if layout.exact and out.nbytes != rooms[at]:
                    raise InvalidArgument(f"the output has {rooms[at]} bytes, its place {out.nbytes}", place=port.name)
                rooms[at] = out.nbytes
        in_place = [place is not None for place in outputs]
        elsewhere = [size for place, (_, size) in zip(inputs, layout.inputs, strict=True) if place is None]
        elsewhere += [size for place, size in zip(outputs, rooms, strict=True) if place is None]
        size = sum(map(aligned, elsewhere))
        block = self._pool.take(block_size(size)) if size else None
        if size and block is None:
            return block_size(size)
        if block is not None:
            end = block.offset
            for at, array in enumerate(arrays):
                if inputs[at] is None and array.nbytes:
                    inputs[at] = block.arena, end
                    block.arena.fill(end, array)
                    end += aligned(array.nbytes)
            for at, room in enumerate(rooms):
                if outputs[at] is None and room:
                    outputs[at] = block.arena, end
                    end += aligned(room)
        key = tuple(place and (place[0].id, place[1]) for place in (*inputs, *outputs))
        request = layout.requests.get(key)
        if request is None:
            request = self._encode(layout, inputs, outputs, rooms)
            self._keep_request(layout, key, request)
        copied = [None if there else place for there, place in zip(in_place, outputs, strict=True)]
        return Prepared(self, layout, block, copied, request, (arrays, self._outs))

    def _keep_request(self, layout: Layout, key: object, request: bytes) -> None:
        if len(layout.requests) >= _KEPT_REQUESTS:
            layout.requests.clear()
        layout.requests[key] = request

    def _encode(
        self,
        layout: Layout,
        inputs: Sequence[Place | None],
        outputs: Sequence[Place | None],
        rooms: Sequence[int] | None = None,
    ) -> bytes:
        """The request, but for its number. What has no bytes has no place: it travels in the messages."""
        version = self.signature.version
        call = v1.Invoke(
            function=self.name,
            deadline_ns=self._deadline_ns,
            function_version=version,
            request_id=self.options.request_id,
            session=self.options.session,
        )
        given = zip(self.signature.inputs, inputs, layout.inputs, layout.types, strict=True)
        for port, place, (_, size), type in given:
            item = v1.Item(region=_region(place, size)) if place and size else v1.Item(inline=b"")
            call.inputs.append(v1.Input(name=port.name, items=[item], type=type))
        rooms = [size for _, size in layout.outputs] if rooms is None else rooms
        for port, place, size in zip(self.signature.outputs, outputs, rooms, strict=True):
            call.outputs.append(v1.Output(name=port.name, region=_region(place, size) if place and size else None))
        return v1.Request(invoke=call).SerializeToString()


class Handle(OfThisProcess, Generic[R]):
    """A function of a client of either kind, with the options that it is called with."""

    __slots__ = ("_bound", "_client")

    def __init__(self, client: Any, bound: Bound) -> None:
        self._client = client
        self._bound = bound

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}: {self._bound.signature}>"

    @property
    def name(self) -> str:
        """As it is called: ``NAME``, or ``OWNER/NAME``."""
        return self._bound.name

    @property
    def inputs(self) -> tuple[Port, ...]:
        """Its inputs in their order."""
        return self._bound.signature.inputs

    @property
    def outputs(self) -> tuple[Port, ...]:
        """Its outputs in their order."""
        return self._bound.signature.outputs

    @property
    def __name__(self) -> str:
        return self.name

    # Its inputs and outputs, for ``inspect.signature``, notebooks and editors.
    __signature__ = OfEachFunction()

    def options(
        self,
        *,
        deadline: float | str | None = _KEEP,
        copy: bool = _KEEP,
        out: npt.NDArray[Any] | Mapping[str, npt.NDArray[Any]] | None = _KEEP,
        request_id: str = _KEEP,
        dtypes: Mapping[str, npt.DTypeLike | str] | None = None,
    ) -> Self:
        """The same function, called otherwise; what is not given stays as it is.

        ``deadline``: for the whole call, from its arrival at the supervisor: seconds, or a time such as ``"500ms"``;
        ``None``: the supervisor's default.
        ``copy``: with ``False``, results are views of shared memory, which they keep from being used again.
        ``out``: where outputs go, by name (or one array, where there is one output). Arrays of an arena are written to
        directly.
        ``request_id``: what the supervisor's log calls the request: at most 128 bytes of visible ASCII.
        ``dtypes``: element types of inputs and outputs for which the function declares none, as ``"f32"`` or NumPy's.
        """
        given = {"deadline": deadline, "copy": copy, "out": out, "request_id": request_id}
        given = {name: value for name, value in given.items() if value is not _KEEP}
        return type(self)(self._client, self._bound.but_with(dtypes, given))


def _region(place: Place, size: int) -> v1.Region:
    return v1.Region(arena=place[0].id, offset=place[1], bytes=size)


def _type_of(port: Port, value: v1.OutputValue) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Element type and shape of an output, as the supervisor and the caller say."""
    size, shape = value.bytes, tuple(value.shape)
    told = _told_dtype(port.name, value.dtype) if value.dtype else None
    dtype = told if port.dtype is None else port.dtype
    if dtype is None:
        return _arrays.BYTES, (size,)
    if told is not None and dtype == told:
        if len(shape) > _MAX_RANK or max(shape, default=0) > _MAX_DIMENSION or math.prod(shape) * dtype.itemsize != size:
            raise ProtocolError(f"output {port.name} has {size} bytes, which are no {value.dtype} of {list(shape)}")
        return dtype, shape
    if size % dtype.itemsize:
        raise InvalidArgument(f"the output has {size} bytes, no whole elements of {_arrays.name_of(dtype)}", place=port.name)
    # The caller's type: as many elements as there are.
    return dtype, (size // dtype.itemsize,)


def _told_dtype(name: str, dtype: str) -> np.dtype[Any]:
    try:
        return _arrays.dtype_of(dtype)
    except InvalidArgument:
        raise ProtocolError(f"output {name} has elements of {dtype!r}, a type that is not known here") from None


def _out(port: Port) -> str:
    """Where an error about the place of an output is."""
    return f"out {port.name}"
