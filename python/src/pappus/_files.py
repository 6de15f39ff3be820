"""A function on disk: a configuration, the compiled modules beside the files it names, and its weights."""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from pappus import _arrays, _npy
from pappus._archive import CONFIG, Archive, Member, open_regular
from pappus._numbers import shown
from pappus._sizes import Blueprint, Sizes
from pappus.errors import Error, InvalidArgument, Unsupported

# Formats of modules, and what names of their architectures begin with.
_FORMATS = {"wasm": None, "ptx": "sm_", "cubin": "sm_", "fatbin": "sm_", "hsaco": "gfx"}
_NAME = re.compile(r"(?P<stem>.+?)(\.(?P<arch>(sm_|gfx)[0-9A-Za-z]+))?\.(?P<format>wasm|ptx|cubin|fatbin|hsaco)")
_POSITION = re.compile(r"\d+:\d+")
_CONFIG_BYTES = 4 << 20
_PIECE = 1 << 20


Source = Path | Member | np.ndarray[Any, Any] | bytes
"""Bytes on disk or in a package, an array, or bytes in memory."""


@dataclass(frozen=True, slots=True)
class ModuleFile:
    """One compiled form of a module."""

    source: Source
    format: str
    arch: str


@dataclass(frozen=True, slots=True)
class Module:
    """A module that a configuration names. Without files it must be registered under its stem."""

    name: str
    stem: str
    files: tuple[ModuleFile, ...]


@dataclass(frozen=True, slots=True)
class Package:
    """A function as found on disk."""

    config: bytes
    modules: tuple[Module, ...]
    weights: Mapping[str, Source]
    path: Path | None = None


def read(path: str | os.PathLike[str], weights: Mapping[str, Any], archive: Archive | None = None) -> Package:
    """Reads a configuration file, or a folder with one, and finds what it names, relative to it; or that of a package.

    Whoever writes a configuration may name any file of the machine in it; a package may come from a stranger, so what it names
    are files of the package and nothing else.
    """
    config = _config_of(Path(path)) if archive is None else archive.members[CONFIG]
    where = config if isinstance(config, Path) else config.path
    with _opened(config) as (file, _):
        text = file.read(_CONFIG_BYTES + 1)
    if not 0 < len(text) <= _CONFIG_BYTES:
        size = f"more than {_CONFIG_BYTES}" if text else "0"
        raise _wrong(where, f"it has {size} bytes, a configuration has 1 to {_CONFIG_BYTES}")
    try:
        document = json.loads(text)
        modules = _modules(where, document, archive)
        names = [_text(name) for name in document["blueprint"].get("weights", [])]
        declared = {_text(name): _find(where, _text(file), archive) for name, file in document.get("weight_files", {}).items()}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as why:
        if isinstance(why, Error):
            raise
        # The supervisor judges it, and names every mistake.
        return Package(text, (), {}, where)
    unknown = weights.keys() - set(names)
    if unknown:
        raise InvalidArgument(f"{sorted(unknown)[0]!r} is no weights buffer of {where}, expected one of {names}")
    blueprint = Blueprint(text)
    found = {name: _weight(name, weights.get(name, declared.get(name)), blueprint, where) for name in names}
    _check_weights(blueprint, found)
    return Package(text, modules, found, where)


def refused(path: Path, why: InvalidArgument) -> InvalidArgument:
    """A refusal with the configuration's file in front of each line and column that it names."""
    position, _, words = why.message.partition(": ")
    if not _POSITION.fullmatch(position):
        return why
    where = f"at {why.place}: " if why.place else ""
    lines = f"{position}: {where}{words}".split("\n")
    return InvalidArgument("\n".join(f"{path}:{line}" if _POSITION.match(line) else line for line in lines))


def module_files(paths: list[str | os.PathLike[str]]) -> tuple[ModuleFile, ...]:
    """Variants of one module, by the names of their files."""
    return tuple(_module_file(Path(path)) for path in paths)


@contextmanager
def pieces(source: Source) -> Iterator[tuple[int, Iterator[memoryview]]]:
    """The bytes of a file, of an array as devices take it, or in memory, and how many there are."""
    if isinstance(source, np.ndarray):
        flat = _arrays.as_sent(source).reshape(-1).view(np.uint8)
        yield len(flat), _slices(memoryview(flat.data))
        return
    if isinstance(source, bytes):
        yield len(source), _slices(memoryview(source))
        return
    with _opened(source) as (file, size):
        yield size, _read_slices(file, source if isinstance(source, Path) else source.path, size)


@contextmanager
def _opened(source: Path | Member) -> Iterator[tuple[BinaryIO, int]]:
    """A file to read, and its size."""
    if isinstance(source, Member):
        with source.open() as member:
            yield member, source.size
        return
    with open_regular(source) as raw, io.BufferedReader(raw) as file:
        yield file, os.fstat(raw.fileno()).st_size


def _read_slices(file: BinaryIO, path: Path, size: int) -> Iterator[memoryview]:
    buffer = bytearray(min(size, _PIECE))
    while size:
        with memoryview(buffer) as view, view[:size] as rest:
            read = file.readinto(rest)  # type: ignore[attr-defined]
            if not read:
                raise _wrong(path, "it became shorter while it was read")
            with rest[:read] as piece:
                yield piece
        size -= read


def _slices(view: memoryview) -> Iterator[memoryview]:
    for at in range(0, len(view), _PIECE):
        with view[at : at + _PIECE] as piece:
            yield piece


def _config_of(path: Path) -> Path:
    if not path.is_dir():
        if not path.exists():
            raise _wrong(path, "there is no such file or folder")
        return path
    named = path / CONFIG
    if named.is_file():
        return named
    found = sorted(path.glob("*.json"))
    if len(found) != 1:
        raise _wrong(path, f"a folder with {len(found)} .json files: name one function.json, or the file")
    return found[0]


def _find(config: Path, name: str, archive: Archive | None) -> Path | Member:
    """A file that a configuration names; the path where it should be, if a package does not have it."""
    if archive is None:
        return config.parent / name
    name = archive.inside(name)
    return archive.members.get(name, config.parent / name)


def _modules(config: Path, document: Any, archive: Archive | None) -> tuple[Module, ...]:
    if "module_path" in document:
        # The only module of such a configuration has the name of its file.
        path = _text(document["module_path"])
        named = [(path.rsplit("/", 1)[-1], path)]
    else:
        named = [(_text(module["module_name"]), _text(module["path"])) for module in document["modules"]]
    return tuple(_module(name, config, file, archive) for name, file in named)


def _module(name: str, config: Path, file: str, archive: Archive | None) -> Module:
    if archive is None:
        path = config.parent / file
        folder = sorted(path.parent.iterdir()) if path.parent.is_dir() else []
        beside: list[Path | Member] = [other for other in folder if other.is_file()]
    else:
        path = config.parent / archive.inside(file)
        beside = [member for _, member in sorted(archive.members.items()) if member.path.parent == path.parent]
    match = _NAME.fullmatch(path.name)
    stem = match["stem"] if match else path.name
    files = []
    for other in beside:
        found = _NAME.fullmatch(other.name if isinstance(other, Path) else other.path.name)
        if found and found["stem"] == stem:
            files.append(_module_file(other))
    return Module(name, stem, tuple(files))


def _module_file(source: Path | Member) -> ModuleFile:
    path = source if isinstance(source, Path) else source.path
    match = _NAME.fullmatch(path.name)
    if not match:
        raise _wrong(
            path,
            "its name does not say what it holds, expected one in .wasm, .ptx, .cubin, .fatbin or .hsaco",
        )
    arch, prefix = match["arch"] or "", _FORMATS[match["format"]]
    if arch and (prefix is None or not arch.startswith(prefix)):
        arch = ""
    return ModuleFile(source, match["format"], arch)


def _weight(name: str, given: Any, blueprint: Blueprint, config: Path) -> Source:
    """The contents of weights, of the type that is declared of them."""
    declared = blueprint.dtype(name)
    if given is None:
        raise InvalidArgument(
            f"weights {name!r} have no contents: pass weights={{{name!r}: array or file}}, or name a file with "
            f'"weight_files" in {config}'
        )
    place, source = f"weights {name}", given
    if isinstance(given, str | os.PathLike | Member):
        file = given if isinstance(given, Member) else Path(given)
        path = file.path if isinstance(file, Member) else file
        if isinstance(file, Path) and not file.is_file():
            raise InvalidArgument(f"weights {name!r}: there is no file {path}")
        if path.suffix != _npy.SUFFIX:
            return file
        place, source = f"{place}, {path}", _npy.read(file)
    elif isinstance(given, bytes | bytearray):
        return bytes(given)
    return _arrays.as_input(place, source, _expected(declared) if declared else None, blueprint.dims(name))


def _expected(declared: str) -> np.dtype[Any]:
    """The declared type of weights; where it takes a package that is missing, as much as is needed to hand it over."""
    try:
        return _arrays.dtype_of(declared)
    except Unsupported:
        return _arrays.bytes_of(declared)


def _check_weights(blueprint: Blueprint, weights: Mapping[str, Source]) -> None:
    """Refuses weights of another shape than is declared, as far as it does not depend on a call."""
    sizes = {name: _size(source) for name, source in weights.items()}
    known = Sizes(blueprint, sizes, {}, {})
    for name, source in weights.items():
        declared = blueprint.dtype(name)
        if declared is None:
            continue
        path = source.path if isinstance(source, Member) else source
        place = f"weights {name}, {path}" if isinstance(path, Path) else f"weights {name}"
        given = source if isinstance(source, np.ndarray) else sizes[name]
        _arrays.check_shape(place, given, _expected(declared), known.dims_of(name))


def _size(source: Source) -> int:
    if isinstance(source, Member):
        return source.size
    if isinstance(source, Path):
        return source.stat().st_size
    return len(source) if isinstance(source, bytes) else source.nbytes


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise TypeError(f"{shown(value)} where a name is expected")
    return value


def _wrong(path: Path, message: str) -> InvalidArgument:
    return InvalidArgument(f"{path}: {message}")
