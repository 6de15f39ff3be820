"""An executable of XLA → a plan whose kernels are machine code.

XLA has planned the memory already: allocations, of which kernels' arguments are slices. Its thunks become steps: launches,
copies and fills as they are; what runs beside other things runs where it starts; a loop with a known number of turns is
repeated, or written out where its turns use different places. Anything else is refused with the line it came from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy

from . import cubin, sizes, xla_hlo
from .errors import PackageError, Unsupported
from .plan import DTYPE_BYTES, ArrayType, Copy, Fill, Launch, Plan, Pointer, Repeat, Step, pointers, unused_name

# What a launch may say. A field that is not listed may change what it does, so it is refused.
_KERNEL_FIELDS = {"args", "args_shape", "written", "custom_kernel", "tma_metadata", "zeroed_output_buffer_indices", "use_pdl"}
_KERNEL_FIELDS |= {"kernel_name", "launch_dimensions", "cluster_dim", "shmem_bytes"}

# Actions as written that a function may have (docs/blueprint.md).
_MAX_STEPS = 262_144

_DATA = "the steps of a function do not depend on data"
_WHY = {
    "while_thunk": f"it has no known number of turns, and {_DATA}",
    "conditional_thunk": _DATA,
    "device_to_host_copy_thunk": "a function does nothing on the host",
    "host_to_device_copy_thunk": "a function does nothing on the host",
    "infeed_thunk": "a function does nothing on the host",
    "outfeed_thunk": "a function does nothing on the host",
}


@dataclass(frozen=True)
class MachineKernel:
    """One kernel in a module of its own, and what each of its launches needs besides arguments and grid."""

    entry: str
    code: bytes
    threads: tuple[int, int, int]
    clusters: tuple[int, int, int]
    shared_bytes: int
    # Which arguments it writes.
    written: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Parameter:
    """An argument of the compiled function: an input, or a weight with its contents."""

    name: str
    weight: Any = None


def read(
    executable: Any, parameters: Sequence[Parameter], types: Mapping[str, ArrayType], outputs: Sequence[str]
) -> tuple[Plan, dict[str, MachineKernel]]:
    """The plan, and its kernels by name. ``types`` has what inputs, weights and outputs hold."""
    return _Reader(executable, parameters, types, outputs).read()


@dataclass(frozen=True)
class _Slice:
    """What a slice's allocation stands for within a fusion that picks a part of a buffer."""

    buffer: str
    offset: int
    size: int


class _Reader:
    def __init__(
        self, executable: Any, parameters: Sequence[Parameter], types: Mapping[str, ArrayType], outputs: Sequence[str]
    ) -> None:
        self.executable = executable
        self.module = xla_hlo.Module(executable.hlo_module_with_config.hlo_module)
        self.plan = Plan(
            inputs=[parameter.name for parameter in parameters if parameter.weight is None],
            outputs=list(outputs),
            weights={parameter.name: parameter.weight for parameter in parameters if parameter.weight is not None},
            types=dict(types),
        )
        self.parameters = parameters
        self.kernels: dict[str, MachineKernel] = {}
        self.memory: dict[int, _Slice] = {}
        self.written_steps = 0

    def read(self) -> tuple[Plan, dict[str, MachineKernel]]:
        copies = self._allocations()
        for step in self._steps(self.executable.thunks, self.memory, ()):
            self.plan.steps.append(step)
        self.plan.steps += copies
        used = {pointer.buffer for step in self.plan.steps for pointer in pointers(step)}
        self.plan.weights = {name: array for name, array in self.plan.weights.items() if name in used}
        self.plan.types = {name: kind for name, kind in self.plan.types.items() if name in self.plan.names()}
        self.plan.check()
        return self.plan, self.kernels

    def _allocations(self) -> list[Step]:
        """Names the memory; what is left to do where an output is not memory of its own."""
        outputs = self._outputs()
        constants = {info.allocation_index: info for info in self.executable.constants}
        taken = [*self.plan.names(), *self.plan.outputs]
        copies: list[Step] = []
        for allocation in self.executable.buffer_allocations.values:
            index, size = allocation.index, allocation.size
            if allocation.is_thread_local or (allocation.is_constant and index not in constants):
                # No thunk uses it.
                continue
            owners = [name for name, of in outputs.items() if of == index]
            if allocation.is_tuple and allocation.maybe_live_out and not owners:
                # The table of several outputs, which nothing reads here.
                continue
            if allocation.is_entry_computation_parameter:
                name = self.parameters[allocation.parameter_number].name
                self._expect_size(name, size)
            elif allocation.is_constant:
                name = unused_name("constant", taken)
                self.plan.weights[name] = self._constant(constants[index], size)
            elif owners and size == self._bytes(owners[0]):
                name = owners.pop(0)
                self.plan.buffers[name] = sizes.absolute(size)
            else:
                name = unused_name("arena", taken)
                self.plan.buffers[name] = sizes.absolute(size)
            taken.append(name)
            self.memory[index] = _Slice(name, 0, size)
            for output in owners:
                number = self._bytes(output)
                self.plan.buffers[output] = sizes.absolute(number)
                if number:
                    copies.append(Copy(Pointer(name), Pointer(output), sizes.absolute(number)))
        missing = [name for name in self.plan.outputs if name not in self.plan.buffers]
        if missing:
            raise PackageError(f"XLA gave outputs {missing} no memory")
        return copies

    def _outputs(self) -> dict[str, int]:
        """The allocation of each output; a result of several has a table of them besides."""
        found = {tuple(entry.shape_index.indexes): entry.output_info for entry in self.executable.output_info_map}
        several = self.executable.program_shape.result.tuple_shapes
        allocations = {}
        for at, name in enumerate(self.plan.outputs):
            info = found[(at,) if len(several) or len(self.plan.outputs) > 1 else ()]
            if info.HasField("alias_config"):
                raise Unsupported(f"output {name!r}", "it takes the memory of an input")
            allocations[name] = info.allocation_index
        return allocations

    def _bytes(self, name: str) -> int:
        kind = self.plan.types[name]
        number = DTYPE_BYTES[kind.dtype]
        for size in kind.shape or ():
            number *= size["Absolute"]
        return number

    def _expect_size(self, name: str, size: int) -> None:
        if size != self._bytes(name):
            raise PackageError(f"XLA expects {size} bytes of {name!r}, which has {self._bytes(name)}")

    def _constant(self, info: Any, size: int) -> Any:
        """A constant's bytes: beside its name, or in the instruction that it is called after."""
        data = info.content.data
        if not data:
            data = self.module.constant(info.symbol_name.removeprefix("buffer_for_"))
        if len(data) != size:
            raise PackageError(f"XLA wrote {len(data)} bytes of constant {info.symbol_name}, which has {size}")
        return numpy.frombuffer(data, numpy.uint8)

    def _steps(self, thunks: Sequence[Any], memory: Mapping[int, _Slice], turns: tuple[int, ...]) -> Iterator[Step]:
        """What thunks do; ``turns`` are the turns of the loops around them, the innermost last."""
        for thunk in thunks:
            kind = thunk.WhichOneof("impl")
            body: Any = getattr(thunk, kind) if kind else None
            if kind == "sequential_thunk":
                yield from self._steps(body.thunks, memory, turns)
            elif kind == "async_start_thunk":
                yield from self._steps(body.thunks.thunks, memory, turns)
            elif kind == "async_done_thunk":
                continue
            elif kind == "while_thunk" and body.HasField("trip_count"):
                yield from self._loop(body, thunk, memory, turns)
            elif kind == "dynamic_slice_fusion_thunk":
                yield from self._steps(body.embedded_thunks.thunks, self._parts(body, thunk, memory, turns), turns)
            else:
                yield from self._counted(self._simple(kind, body, thunk, memory), thunk)

    def _counted(self, steps: Iterator[Step], thunk: Any) -> Iterator[Step]:
        for step in steps:
            self.written_steps += 1
            if self.written_steps > _MAX_STEPS:
                raise self._refused(thunk, f"a function has at most {_MAX_STEPS} steps")
            yield step

    def _simple(self, kind: str | None, body: Any, thunk: Any, memory: Mapping[int, _Slice]) -> Iterator[Step]:
        if kind in ("kernel_thunk", "custom_kernel_thunk"):
            yield from self._launch(kind, body, thunk, memory)
        elif kind in ("device_to_device_copy_thunk", "copy_thunk"):
            body = body.copy_thunk if kind == "device_to_device_copy_thunk" else body
            number = body.mem_size
            source = _pointer(memory, body.source_buffer.slice, number)
            to = _pointer(memory, body.destination_buffer.slice, number)
            if number and source != to:
                yield Copy(source, to, sizes.absolute(number))
        elif kind == "memzero_thunk":
            yield from self._fill(body.dest_buffer.slice, 0, memory)
        elif kind == "memset32bit_value_thunk":
            value = body.value.to_bytes(4, "little")
            if len(set(value)) > 1:
                raise self._refused(thunk, "a fill has one value for all bytes")
            yield from self._fill(body.dest_buffer, value[0], memory)
        else:
            raise self._refused(thunk, _WHY.get(kind or "", "it has no kernel: XLA leaves it to a library of its own"))

    def _fill(self, part: Any, byte: int, memory: Mapping[int, _Slice]) -> Iterator[Step]:
        if part.size:
            yield Fill(_pointer(memory, part, part.size), sizes.absolute(part.size), byte)

    def _loop(self, body: Any, thunk: Any, memory: Mapping[int, _Slice], turns: tuple[int, ...]) -> Iterator[Step]:
        inner = body.body_thunk_sequence.thunks
        if body.trip_count and not _picks_parts(inner):
            yield Repeat(sizes.absolute(body.trip_count), tuple(self._steps(inner, memory, (*turns, 0))))
            return
        for turn in range(body.trip_count):
            yield from self._steps(inner, memory, (*turns, turn))

    def _parts(self, body: Any, thunk: Any, memory: Mapping[int, _Slice], turns: tuple[int, ...]) -> dict[int, _Slice]:
        """The memory of a fusion that works on a part of its operands in each turn of a loop: parameters, then results."""
        whole = [
            *((body.parameter_buffers[each.parameter_number], each, "slice") for each in body.parameters),
            *((body.result_buffers[each.result_number], each, "update") for each in body.results),
        ]
        if len(whole) != len(body.slice_allocations):
            raise self._refused(thunk, "its operands are not described in a way that is known here")
        parts = {}
        for allocation, (buffer, operand, prefix) in zip(body.slice_allocations, whole, strict=True):
            start = 0
            if operand.HasField(f"{prefix}_config"):
                config = getattr(operand, f"{prefix}_config")
                if config.HasField("table"):
                    raise self._refused(thunk, "its places are in a table")
                turn = 0
                if config.HasField("loop_index") and config.loop_index < len(turns):
                    turn = turns[-1 - config.loop_index]
                start = config.byte_offset + turn * config.byte_stride
            elif getattr(operand, f"{prefix}_offsets"):
                raise self._refused(thunk, f"its place is computed from data, and {_DATA}")
            if start < 0 or start + allocation.size > buffer.size:
                raise self._refused(thunk, f"bytes {start} to {start + allocation.size} of {buffer.size}")
            held = _within(memory, buffer, buffer.size)
            parts[allocation.index] = _Slice(held.buffer, held.offset + start, allocation.size)
        return parts

    def _launch(self, kind: str, body: Any, thunk: Any, memory: Mapping[int, _Slice]) -> Iterator[Step]:
        strange = {descriptor.name for descriptor, _ in body.ListFields()} - _KERNEL_FIELDS
        if strange:
            raise self._refused(thunk, f"its launch says {sorted(strange)}, which is not known here")
        slices = [part.slice for part in body.args] if kind == "custom_kernel_thunk" else list(body.args)
        if body.tma_metadata.arg_index_to_tma_info:
            raise self._refused(thunk, "its kernel takes tensor maps, which XLA was told not to use (xla_lowering.TILES)")
        places = [_pointer(memory, part, part.size) for part in slices]
        for at in body.zeroed_output_buffer_indices:
            yield from self._fill(slices[at], 0, memory)
        if kind == "custom_kernel_thunk":
            custom = body.custom_kernel
            entry, code = custom.kernel_spec.kernel_name, bytes(custom.kernel_spec.cubin.data)
            blocks, threads, clusters = custom.block_dims, custom.thread_dims, custom.cluster_dim
            shared, order = custom.shared_memory_bytes, self._order(custom.kernel_spec, thunk)
        else:
            entry, code = body.kernel_name, bytes(self.executable.binary)
            blocks, threads = body.launch_dimensions.block_counts, body.launch_dimensions.thread_counts_per_block
            clusters, shared, order = body.cluster_dim, body.shmem_bytes, None
        order = list(range(len(places))) if order is None else order
        kernel = MachineKernel(
            entry=entry,
            code=code,
            threads=_dimensions(threads),
            clusters=_dimensions(clusters),
            shared_bytes=shared,
            written=frozenset(at for at, of in enumerate(order) if of < len(body.written) and body.written[of]),
        )
        self._check(kernel, len(order), thunk)
        x, y, z = (sizes.absolute(count) for count in _dimensions(blocks))
        arguments = {str(at): places[of] for at, of in enumerate(order)}
        yield Launch(self._named(kernel), arguments, (x, y, z))

    def _order(self, spec: Any, thunk: Any) -> list[int] | None:
        """Which slice each parameter is the address of; in their order, where nothing is said."""
        if not spec.HasField("kernel_args_packing_spec"):
            return None
        order = []
        for argument in spec.kernel_args_packing_spec.kernel_arguments:
            if len(argument.relocations) != 1 or any(argument.data):
                raise self._refused(thunk, "a parameter of its kernel is no address")
            (relocation,) = argument.relocations
            if xla_hlo.enum_name(relocation, "kind") != "KIND_BITS64_ABSOLUTE":
                raise self._refused(thunk, "a parameter of its kernel is no address")
            order.append(relocation.argument_index)
        return order

    def _check(self, kernel: MachineKernel, arguments: int, thunk: Any) -> None:
        """The machine code takes addresses, one behind the other from byte 0 on: so Pappus passes them."""
        taken = cubin.parameters(kernel.code, kernel.entry)
        numbers = [number for _, number in taken]
        if numbers != [8] * arguments:
            why = f"kernel {kernel.entry} takes parameters of {numbers} bytes, XLA passes {arguments} addresses"
            raise self._refused(thunk, why)
        for at, (offset, _) in enumerate(taken):
            if offset != 8 * at:
                why = f"kernel {kernel.entry} has parameter {at} at byte {offset}, Pappus passes it at byte {8 * at}"
                raise self._refused(thunk, why)

    def _named(self, kernel: MachineKernel) -> str:
        """The kernel's name in the blueprint: its own, unless another one has it."""
        for name, known in self.kernels.items():
            if known == kernel:
                return name
        name = unused_name(kernel.entry, self.kernels)
        self.kernels[name] = kernel
        return name

    def _refused(self, thunk: Any, why: str) -> Unsupported:
        kind = (thunk.WhichOneof("impl") or "thunk").removesuffix("_thunk")
        operation, where = self.module.origin(thunk.thunk_info.profile_annotation)
        what = operation or kind
        if kind == "custom_call":
            what = f"{what} ({thunk.custom_call_thunk.target_name})"
        return Unsupported(what, why, where)


def _picks_parts(thunks: Sequence[Any]) -> bool:
    """Whether turns of a loop with these steps use different places."""
    for thunk in thunks:
        kind = thunk.WhichOneof("impl")
        if kind == "dynamic_slice_fusion_thunk":
            return True
        inner: Sequence[Any] = ()
        if kind == "sequential_thunk":
            inner = thunk.sequential_thunk.thunks
        elif kind == "async_start_thunk":
            inner = thunk.async_start_thunk.thunks.thunks
        elif kind == "while_thunk":
            inner = thunk.while_thunk.body_thunk_sequence.thunks
        if _picks_parts(inner):
            return True
    return False


def _within(memory: Mapping[int, _Slice], part: Any, number: int) -> _Slice:
    """``number`` bytes from the start of a slice of XLA's memory."""
    held = memory.get(part.buffer_allocation_index)
    if held is None:
        raise PackageError(f"XLA uses allocation {part.buffer_allocation_index}, which it did not describe")
    if part.offset < 0 or number > part.size or part.offset + part.size > held.size:
        raise PackageError(f"XLA uses bytes {part.offset} to {part.offset + number} of {held.buffer!r}, which has {held.size}")
    return _Slice(held.buffer, held.offset + part.offset, number)


def _pointer(memory: Mapping[int, _Slice], part: Any, number: int) -> Pointer:
    held = _within(memory, part, number)
    return Pointer(held.buffer, sizes.absolute(held.offset))


def _dimensions(message: Any) -> tuple[int, int, int]:
    """Counts along x, y and z; 1 where nothing is said."""
    at = message.coordinates
    return (at.x or 1, at.y or 1, at.z or 1)
