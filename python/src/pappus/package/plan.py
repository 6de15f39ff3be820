"""What a function does, before it is code: kernels in source form, buffers, and the steps of a call.

Front ends (:mod:`.jit`, :mod:`.lowering`) make a :class:`Plan`; :mod:`.build` compiles its kernels and writes it as a
blueprint, :mod:`.interpret` runs it. :mod:`.xla_plan` makes one of what is machine code already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from . import memory, sizes
from .errors import PackageError
from .sizes import Size

# Triton's names of element types, and blueprints'.
DTYPES = {
    "i1": "bool",
    "u1": "bool",
    "i8": "i8",
    "u8": "u8",
    "i16": "i16",
    "u16": "u16",
    "i32": "i32",
    "u32": "u32",
    "i64": "i64",
    "u64": "u64",
    "fp16": "f16",
    "bf16": "bf16",
    "fp8e4nv": "f8e4m3fn",
    "fp8e5": "f8e5m2",
    "fp32": "f32",
    "fp64": "f64",
}

DTYPE_BYTES = {
    "bool": 1,
    "u8": 1,
    "i8": 1,
    "u16": 2,
    "i16": 2,
    "f16": 2,
    "bf16": 2,
    "f8e4m3fn": 1,
    "f8e5m2": 1,
    "u32": 4,
    "i32": 4,
    "f32": 4,
    "u64": 8,
    "i64": 8,
    "f64": 8,
}

# Types that NumPy lacks.
NOT_NUMPYS = ("bf16", "f8e4m3fn", "f8e5m2")


def bits(tensor: Any) -> Any:
    """A tensor's elements as whole numbers of as many bits: what there is in NumPy of a type that it lacks."""
    import torch

    return tensor.view(torch.uint16 if tensor.dtype.itemsize == 2 else torch.uint8)


# Argument forms by Triton's type of the parameter. Those of 1 and 2 bytes need a supervisor that knows free dimensions.
ARGUMENTS = {
    "i32": "I32",
    "u32": "U32",
    "i64": "I64",
    "u64": "U64",
    "fp32": "F32",
    "fp64": "F64",
    "i1": "Bool",
    "u1": "Bool",
    "i8": "I8",
    "u8": "U8",
    "i16": "I16",
    "u16": "U16",
    "fp16": "F16",
    "bf16": "BF16",
}


@dataclass(frozen=True)
class KernelSource:
    """A Triton kernel, specialised: everything that its machine code depends on but the target.

    ``signature`` has Triton's type of every parameter of the Python function, in its order; those that are
    ``constexpr`` have their values in ``constants``. ``attributes`` are what Triton may rely on, by position.
    ``float32`` is how it multiplies float32 in place of what its source says (:mod:`.precision`).
    """

    function: Any
    signature: Mapping[str, str]
    constants: Mapping[tuple[int, ...], Any]
    attributes: Mapping[tuple[int, ...], list[list[Any]]]
    options: Mapping[str, Any]
    float32: str | None = None

    @property
    def parameters(self) -> list[tuple[str, str]]:
        """Name and type of those that a launch passes."""
        return [(name, kind) for name, kind in self.signature.items() if kind != "constexpr"]


@dataclass(frozen=True)
class Pointer:
    """The address of a byte of a buffer."""

    buffer: str
    offset: Size = field(default_factory=lambda: sizes.absolute(0))


@dataclass(frozen=True)
class Launch:
    """One launch: values for the kernel's parameters by name, and blocks along each dimension."""

    kernel: str
    arguments: Mapping[str, Pointer | Size | int | float]
    grid: tuple[Size, Size, Size]


@dataclass(frozen=True)
class Copy:
    """Bytes from one buffer to another."""

    source: Pointer
    to: Pointer
    bytes: Size


@dataclass(frozen=True)
class Fill:
    """All bytes of a range to one value."""

    to: Pointer
    bytes: Size
    byte: int = 0


@dataclass(frozen=True)
class Repeat:
    """Steps that are done a number of times."""

    times: Size
    steps: tuple[Step, ...]


Step = Launch | Copy | Fill | Repeat


@dataclass(frozen=True)
class ArrayType:
    """What a buffer holds; no shape: a list of elements."""

    dtype: str
    shape: tuple[Size, ...] | None = None

    def to_json(self) -> dict[str, Any]:
        """As blueprints have it."""
        declared: dict[str, Any] = {"dtype": self.dtype}
        if self.shape is not None:
            declared["shape"] = list(self.shape)
        return declared


@dataclass
class Plan:
    """A function. Weights are contiguous numpy arrays; ``types`` may say more about them.

    ``state`` are bytes of buffers that stay from call to call of a session, and are zero when it begins.
    ``orders`` are of weights whose dimensions lie in another order than their model has them: its dimensions, outermost first.
    ``guards`` are buffers of 0 bytes whose size has no value for a call that the function is not made for.
    ``batch`` is the free dimension along which calls may run side by side, and how many items may.
    ``reads_zeros`` is true if a step may read what none has written: a buffer is zero then, and shares no bytes with others.
    """

    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    buffers: dict[str, Size] = field(default_factory=dict)
    weights: dict[str, Any] = field(default_factory=dict)
    state: dict[str, int] = field(default_factory=dict)
    types: dict[str, ArrayType] = field(default_factory=dict)
    kernels: dict[str, KernelSource] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    guards: dict[str, Size] = field(default_factory=dict)
    orders: dict[str, tuple[int, ...]] = field(default_factory=dict)
    batch: tuple[str, int] | None = None
    reads_zeros: bool = False

    def arranged(self) -> Plan:
        """The same with buffers of known size placed in one ``arena`` buffer, if that saves memory.

        Buffers whose size depends on the call stay their own: the supervisor shares their memory call by call, cleared.
        """
        if self.reads_zeros:
            return self
        lives = self._lives()
        layout = memory.place(lives)
        if len(lives) < 2:
            return self
        arena = unused_name("arena", self.names())

        def moved(pointer: Pointer) -> Pointer:
            offset = layout.offsets.get(pointer.buffer)
            if offset is None:
                return pointer
            return Pointer(arena, sizes.total([sizes.absolute(offset), pointer.offset]))

        buffers = {n: s for n, s in self.buffers.items() if n not in layout.offsets}
        buffers[arena] = sizes.absolute(layout.size)
        return Plan(
            inputs=self.inputs,
            outputs=self.outputs,
            buffers=buffers,
            weights=self.weights,
            state=self.state,
            types={n: t for n, t in self.types.items() if n not in layout.offsets},
            kernels=self.kernels,
            steps=[map_pointers(step, moved) for step in self.steps],
            guards=self.guards,
            orders=self.orders,
            batch=self.batch,
        )

    def names(self) -> set[str]:
        """Of all that has bytes."""
        return {*self.inputs, *self.weights, *self.state, *self.buffers}

    def check(self) -> None:
        """Finds what no blueprint may have."""
        names = [*self.inputs, *self.weights, *self.state, *self.buffers]
        twice = {name for name in names if names.count(name) > 1} if len(set(names)) < len(names) else ()
        if twice:
            raise PackageError(f"names stand for two things: {sorted(twice)}")
        written = {*self.inputs, *self.buffers}
        for output in self.outputs:
            if output not in written:
                raise PackageError(f"output {output!r} is neither an input nor a buffer")
        if len(set(self.outputs)) < len(self.outputs):
            raise PackageError(f"an output stands twice among {self.outputs}")
        for step in self.steps:
            for pointer in pointers(step):
                if pointer.buffer not in self.names():
                    raise PackageError(f"a step uses buffer {pointer.buffer!r}, which there is not")

    def _lives(self) -> list[memory.Live]:
        uses: dict[str, list[int]] = {}
        for at, step in enumerate(self.steps):
            for pointer in pointers(step):
                uses.setdefault(pointer.buffer, []).append(at)
        lives = []
        for name, size in self.buffers.items():
            number = sizes.known(size)
            if number and name not in self.outputs and name in uses:
                lives.append(memory.Live(name, number, uses[name][0], uses[name][-1]))
        return lives


def pointers(step: Step) -> Iterable[Pointer]:
    """What a step reads and writes."""
    if isinstance(step, Launch):
        return [value for value in step.arguments.values() if isinstance(value, Pointer)]
    if isinstance(step, Copy):
        return [step.source, step.to]
    if isinstance(step, Repeat):
        return [pointer for each in step.steps for pointer in pointers(each)]
    return [step.to]


def launches(steps: Iterable[Step]) -> Iterator[Launch]:
    """All launches of steps, those that are repeated once."""
    for step in steps:
        if isinstance(step, Launch):
            yield step
        elif isinstance(step, Repeat):
            yield from launches(step.steps)


def unused_name(wanted: str, taken: Iterable[str]) -> str:
    """``wanted``, or the first of ``wanted_2``, ``wanted_3``, … that nothing is called yet."""
    taken = set(taken)
    name, count = wanted, 1
    while name in taken:
        count += 1
        name = f"{wanted}_{count}"
    return name


def dense_bytes(dtype: str, shape: Sequence[Size]) -> Size:
    """Bytes of an array without gaps."""
    return sizes.product([*shape, sizes.absolute(DTYPE_BYTES[dtype])])


def map_pointers(step: Step, moved: Callable[[Pointer], Pointer]) -> Step:
    """The same step with other pointers."""
    if isinstance(step, Launch):
        arguments: dict[str, Pointer | Size | int | float] = {
            name: moved(value) if isinstance(value, Pointer) else value for name, value in step.arguments.items()
        }
        return Launch(step.kernel, arguments, step.grid)
    if isinstance(step, Copy):
        return Copy(moved(step.source), moved(step.to), step.bytes)
    if isinstance(step, Repeat):
        return Repeat(step.times, tuple(map_pointers(each, moved) for each in step.steps))
    return Fill(moved(step.to), step.bytes, step.byte)
