"""What XLA's instructions tell of a step: its name, the line of the user's program, a constant's value."""

from __future__ import annotations

import linecache
import re
from typing import Any

import numpy

from .errors import PackageError, Unsupported

# XLA's names of element types, and numpy's of those that it writes as lists of numbers. Others it writes as bytes.
_LISTS = {"PRED": "?", "S32": "<i4", "U32": "<u4", "S64": "<i8", "U64": "<u8", "F32": "<f4", "F64": "<f8"}
_BYTES = {"S8", "U8", "S16", "U16", "F16", "BF16"}


class Module:
    """The instructions that an executable was made of."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def origin(self, name: str) -> tuple[str | None, str | None]:
        """What the user called, and where, as far as it is known: the operation, and ``file:line: code``."""
        for computation in self._module.computations:
            for instruction in computation.instructions:
                if instruction.name == name:
                    # The last part of ``jit(f)/sort``, or XLA's own name of it.
                    called = str(instruction.metadata.op_name).rsplit("/", 1)[-1]
                    return called or str(instruction.opcode), self._where(instruction.metadata)
        return None, None

    def constant(self, name: str) -> bytes:
        """The bytes of the constant that a symbol is called after."""
        found = [
            instruction.literal
            for computation in self._module.computations
            for instruction in computation.instructions
            if instruction.opcode == "constant" and re.sub(r"[^\w]", "_", instruction.name) == name
        ]
        if len(found) != 1:
            raise PackageError(f"XLA wrote constant {name} without its value")
        return literal_bytes(found[0])

    def _where(self, metadata: Any) -> str | None:
        """The innermost line of the user's."""
        index, file, line = self._module.stack_frame_index, metadata.source_file, metadata.source_line
        # Numbers of frames, places and files count from 1.
        if 0 < metadata.stack_frame_id <= len(index.stack_frames):
            place = index.file_locations[index.stack_frames[metadata.stack_frame_id - 1].file_location_id - 1]
            file, line = index.file_names[place.file_name_id - 1], place.line
        return shown(file, line) if file else None


def shown(file: str, line: int) -> str:
    """``file:line: code``."""
    return f"{file}:{line}: {linecache.getline(file, line).strip()}"


def enum_name(message: Any, field: str) -> str:
    """The name of what a field says."""
    return str(message.DESCRIPTOR.fields_by_name[field].enum_type.values_by_number[getattr(message, field)].name)


def literal_bytes(literal: Any) -> bytes:
    """A constant as it lies in memory."""
    kind = enum_name(literal.shape, "element_type")
    if kind in _BYTES:
        return bytes(getattr(literal, f"{kind.lower()}s"))
    if kind not in _LISTS:
        raise Unsupported(f"a constant of type {kind}", "blueprints do not have it")
    return numpy.array(getattr(literal, f"{kind.lower()}s"), _LISTS[kind]).tobytes()
