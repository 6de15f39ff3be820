"""A function on disk: a configuration, the compiled modules beside the files it names, and its weights."""

from __future__ import annotations

import json
import mmap
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pappus import _arrays, _npy
from pappus._numbers import shown
from pappus._sizes import Blueprint, Sizes
from pappus.errors import Error, InvalidArgument, Unsupported

# Formats of modules, and what names of their architectures begin with.
_FORMATS = {"wasm": None, "ptx": "sm_", "cubin": "sm_", "fatbin": "sm_", "hsaco": "gfx"}
_NAME = re.compile(r"(?P<stem>.+?)(\.(?P<arch>(sm_|gfx)[0-9A-Za-z]+))?\.(?P<format>wasm|ptx|cubin|fatbin|hsaco)")
_CONFIG_BYTES = 4 << 20
_PIECE = 1 << 20


Source = Path | np.ndarray[Any, Any] | bytes
"""Bytes on disk, an array, or bytes in memory."""


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


def read(path: str | os.PathLike[str], weights: Mapping[str, Any], *, confined: bool) -> Package:
    """Reads a configuration file, or a folder with one, and finds what it names, relative to it.

    A stranger's configuration is confined: it can name no file outside its folder.
    """
    config = _config_of(Path(path))
    text = config.read_bytes() if config.stat().st_size <= _CONFIG_BYTES else b""
    if not text:
        raise _wrong(config, f"it has {config.stat().st_size} bytes, a configuration has 1 to {_CONFIG_BYTES}")
    try:
        document = json.loads(text)
        if confined:
            _check_inside(config, document)
        modules = _modules(config, document)
        names = [_text(name) for name in document["blueprint"].get("weights", [])]
        declared = {_text(name): config.parent / _text(file) for name, file in document.get("weight_files", {}).items()}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as why:
        if isinstance(why, Error):
            raise
        raise _wrong(config, f"it is no configuration such as kernels/configs/vec_add.json: {why!r}") from None
    unknown = weights.keys() - set(names)
    if unknown:
        raise InvalidArgument(f"{sorted(unknown)[0]!r} is no weights buffer of {config}, expected one of {names}")
    blueprint = Blueprint(text)
    found = {name: _weight(name, weights.get(name, declared.get(name)), blueprint, config) for name in names}
    _check_weights(blueprint, found)
    return Package(text, modules, found)


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
    with open(source, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if not size:
            yield 0, iter(())
            return
        with mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ) as mapped, memoryview(mapped) as view:
            yield size, _slices(view)


def _slices(view: memoryview) -> Iterator[memoryview]:
    for at in range(0, len(view), _PIECE):
        with view[at : at + _PIECE] as piece:
            yield piece


def _config_of(path: Path) -> Path:
    if not path.is_dir():
        if not path.is_file():
            raise _wrong(path, "there is no such file or folder")
        return path
    named = path / "function.json"
    if named.is_file():
        return named
    found = sorted(path.glob("*.json"))
    if len(found) != 1:
        raise _wrong(path, f"a folder with {len(found)} .json files: name one function.json, or the file")
    return found[0]


def _check_inside(config: Path, document: Any) -> None:
    folder = config.parent.resolve()
    named = [module["path"] for module in document.get("modules", [])] + list(document.get("weight_files", {}).values())
    for file in [*named, document.get("module_path", "m")]:
        if not (folder / _text(file)).resolve().is_relative_to(folder):
            raise _wrong(config, f"it names {file!r}, which lies outside its folder")


def _modules(config: Path, document: Any) -> tuple[Module, ...]:
    if "module_path" in document:
        # The only module of such a configuration has the name of its file.
        path = _text(document["module_path"])
        named = [(path.rsplit("/", 1)[-1], path)]
    else:
        named = [(_text(module["module_name"]), _text(module["path"])) for module in document["modules"]]
    return tuple(_module(name, config.parent / file) for name, file in named)


def _module(name: str, path: Path) -> Module:
    match = _NAME.fullmatch(path.name)
    stem = match["stem"] if match else path.name
    files = []
    if path.parent.is_dir():
        for other in sorted(path.parent.iterdir()):
            found = _NAME.fullmatch(other.name)
            if found and found["stem"] == stem and other.is_file():
                files.append(_module_file(other))
    return Module(name, stem, tuple(files))


def _module_file(path: Path) -> ModuleFile:
    match = _NAME.fullmatch(path.name)
    if not match:
        raise _wrong(
            path,
            "its name does not say what it holds, expected one in .wasm, .ptx, .cubin, .fatbin or .hsaco",
        )
    arch, prefix = match["arch"] or "", _FORMATS[match["format"]]
    if arch and (prefix is None or not arch.startswith(prefix)):
        arch = ""
    return ModuleFile(path, match["format"], arch)


def _weight(name: str, given: Any, blueprint: Blueprint, config: Path) -> Source:
    """The contents of weights, of the type that is declared of them."""
    declared = blueprint.dtype(name)
    if given is None:
        raise InvalidArgument(
            f"weights {name!r} have no contents: pass weights={{{name!r}: array or file}}, or name a file with "
            f'"weight_files" in {config}'
        )
    place, source = f"weights {name}", given
    if isinstance(given, str | os.PathLike):
        path = Path(given)
        if not path.is_file():
            raise InvalidArgument(f"weights {name!r}: there is no file {path}")
        if path.suffix != _npy.SUFFIX:
            return path
        place, source = f"{place}, {path}", _npy.read(path)
    elif isinstance(given, bytes | bytearray):
        return bytes(given)
    return _arrays.as_input(place, source, _expected(declared) if declared else None, blueprint.dims(name))


def _expected(declared: str) -> np.dtype[Any]:
    """The declared type of weights; of bf16, where the package for it is missing, as much as is needed to hand it over."""
    try:
        return _arrays.dtype_of(declared)
    except Unsupported:
        return _arrays.TWO_BYTES


def _check_weights(blueprint: Blueprint, weights: Mapping[str, Source]) -> None:
    """Refuses weights of another shape than is declared, as far as it does not depend on a call."""
    sizes = {name: _size(source) for name, source in weights.items()}
    known = Sizes(blueprint, sizes, {}, {})
    for name, source in weights.items():
        declared = blueprint.dtype(name)
        if declared is None:
            continue
        place = f"weights {name}, {source}" if isinstance(source, Path) else f"weights {name}"
        given = source if isinstance(source, np.ndarray) else sizes[name]
        _arrays.check_shape(place, given, _expected(declared), known.dims_of(name))


def _size(source: Source) -> int:
    if isinstance(source, Path):
        return source.stat().st_size
    return len(source) if isinstance(source, bytes) else source.nbytes


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise TypeError(f"{shown(value)} where a name is expected")
    return value


def _wrong(path: Path, message: str) -> InvalidArgument:
    return InvalidArgument(f"{path}: {message}")
