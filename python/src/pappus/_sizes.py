"""Sizes as blueprints write them, from the inputs of a call: how large its outputs will be, and which shapes its inputs have.

The supervisor computes and checks all of it again. What cannot be computed here (a newer kind of size, a grantee that
does not see the blueprint) is `None`, and the answer says how large an output was.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

# Of sizes inside sizes, buffers that name each other included. The format has fewer levels, and longer chains of buffers:
# those are not computed here.
_MAX_DEPTH = 200


_ELEMENT_BYTES = {
    name: size
    for size, names in {
        1: "u8 i8 f8e4m3fn f8e5m2 bool",
        2: "u16 i16 f16 bf16",
        4: "u32 i32 f32",
        8: "u64 i64 f64",
    }.items()
    for name in names.split()
}
_FOLDS: dict[str, Callable[[list[int]], int]] = {"Sum": sum, "Product": math.prod, "Min": min, "Max": max}


class Unknown(Exception):
    """A size that cannot be computed here."""


class Blueprint:
    """The parts of a function's configuration that say how large its buffers are."""

    def __init__(self, config: str | bytes) -> None:
        self.inputs: Sequence[str] = ()
        self.outputs: Sequence[str] = ()
        self.buffers: Mapping[str, Any] = {}
        self.types: Mapping[str, Any] = {}
        # (input, number of the word) for all that any buffer's size or shape is computed from.
        self.words: Sequence[tuple[str, int]] = ()
        try:
            # A byte order mark is none of the text, which json.loads takes away from bytes only.
            text = config.encode() if isinstance(config, str) else config
            blueprint = json.loads(text)["blueprint"] if text else {}
            buffers, types = blueprint.get("buffers", {}), blueprint.get("types", {})
            inputs, outputs = _names(blueprint.get("inputs", [])), _names(blueprint.get("outputs", []))
            words: dict[tuple[str, int], None] = {}
            _find_words([buffers, types], words, 0)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError, Unknown):
            return
        if isinstance(buffers, dict) and isinstance(types, dict):
            self.inputs, self.outputs = inputs, outputs
            self.buffers, self.types, self.words = buffers, types, tuple(words)

    def declare(self, name: str, dtype: str, shape: Sequence[Any] | None) -> None:
        """What the supervisor tells of a buffer whose blueprint is another tenant's."""
        declared: dict[str, Any] = {"dtype": dtype} if shape is None else {"dtype": dtype, "shape": list(shape)}
        self.types = {**self.types, name: declared}

    def dtype(self, name: str) -> str | None:
        """The declared element type of a buffer."""
        declared = self.types.get(name)
        dtype = declared.get("dtype") if isinstance(declared, dict) else None
        return dtype if isinstance(dtype, str) else None

    def _dims(self, name: str) -> list[Any] | None:
        declared = self.types.get(name)
        dims = declared.get("shape") if isinstance(declared, dict) else None
        return dims if isinstance(dims, list) else None

    def dims(self, name: str) -> list[int | str | None] | None:
        """A buffer's declared shape: sizes, names of free dimensions, and ``None`` for what is computed."""

        def dim(of: Any) -> int | str | None:
            known = of.get("Free", of.get("Absolute")) if isinstance(of, dict) else of
            return known if isinstance(known, str | int) and not isinstance(known, bool) else None

        dims = self._dims(name)
        return None if dims is None else [dim(of) for of in dims]


class Sizes:
    """The sizes of one call."""

    def __init__(
        self,
        blueprint: Blueprint,
        inputs: Mapping[str, int],
        words: Mapping[tuple[str, int], int],
        free: Mapping[str, int],
    ) -> None:
        self._blueprint = blueprint
        self._known: dict[str, int] = dict(inputs)
        self._words = words
        self._free = free

    def bytes_of(self, name: str) -> int | None:
        """The bytes of a buffer."""
        try:
            return self._sizeof(name, 0)
        except Unknown:
            return None

    def dims_of(self, name: str) -> list[int | str | None] | None:
        """The declared shape of a buffer, with what this call computes; names are of free dimensions that it does not tell."""

        def dim(of: Any, declared: int | str | None) -> int | str | None:
            try:
                return self._size(of, 0)
            except Unknown:
                return declared

        declared = self._blueprint.dims(name)
        return None if declared is None else list(map(dim, self._blueprint._dims(name) or (), declared))

    def _sizeof(self, name: Any, depth: int) -> int:
        if not isinstance(name, str):
            raise Unknown
        if name not in self._known:
            size = self._blueprint.buffers.get(name)
            self._known[name] = self._typed(name) if size is None else self._size(size, depth + 1)
        return self._known[name]

    def _typed(self, name: str) -> int:
        """The bytes of a buffer of which only its type is known."""
        dtype, dims = self._blueprint.dtype(name), self._blueprint._dims(name)
        if dtype not in _ELEMENT_BYTES or dims is None:
            raise Unknown
        return _known(_ELEMENT_BYTES[dtype] * math.prod(self._size(dim, 0) for dim in dims))

    def _size(self, size: Any, depth: int) -> int:
        if _is_number(size):
            return _known(size)
        if not isinstance(size, dict) or len(size) != 1 or depth > _MAX_DEPTH:
            raise Unknown
        ((kind, of),) = size.items()
        match kind:
            case "Absolute" if _is_number(of):
                return _known(of)
            case "Sizeof":
                return self._sizeof(of, depth)
            case "FromInput" if isinstance(of, dict):
                return _known(self._words.get((of.get("bufname"), of.get("idx"))))  # type: ignore[arg-type]
            case "Free":
                return _known(self._free.get(of) if isinstance(of, str) else None)
            case "Sum" | "Product" | "Min" | "Max" if isinstance(of, list) and of:
                parts = [self._size(part, depth + 1) for part in of]
                return _known(_FOLDS[kind](parts))
            case "CeilDiv" | "FloorDiv" | "Mod" | "Sub" if isinstance(of, list) and len(of) == 2:
                return _binary(kind, self._size(of[0], depth + 1), self._size(of[1], depth + 1))
        raise Unknown


def _is_number(size: Any) -> bool:
    # To Python, True is a number.
    return isinstance(size, int) and not isinstance(size, bool)


def _binary(kind: str, left: int, right: int) -> int:
    if kind == "Sub":
        return _known(left - right)
    if right == 0:
        raise Unknown
    if kind == "CeilDiv":
        return -(-left // right)
    return left // right if kind == "FloorDiv" else left % right


def _known(size: int | None) -> int:
    """A result, if it is one: sizes have 64 bits."""
    if size is None or not 0 <= size < 1 << 64:
        raise Unknown
    return size


def _names(value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise Unknown
    return value


def _find_words(value: Any, found: dict[tuple[str, int], None], depth: int) -> None:
    if depth > _MAX_DEPTH:
        raise Unknown
    if isinstance(value, dict):
        word = value.get("FromInput")
        if isinstance(word, dict) and isinstance(word.get("bufname"), str) and isinstance(word.get("idx"), int):
            found[word["bufname"], word["idx"]] = None
        parts: Any = value.values()
    elif isinstance(value, list):
        parts = value
    else:
        return
    for part in parts:
        _find_words(part, found, depth + 1)
