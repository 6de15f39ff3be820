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

from pappus import _arrays
from pappus.errors import Error, InvalidArgument

# Formats of modules, and what names of their architectures begin with.
_FORMATS = {"wasm": None, "ptx": "sm_", "cubin": "sm_", "fatbin": "sm_", "hsaco": "gfx"}
_NAME = re.compile(r"(?P<stem>.+?)(\.(?P<arch>(sm_|gfx)[0-9A-Za-z]+))?\.(?P<format>wasm|ptx|cubin|fatbin|hsaco)")
_CONFIG_BYTES = 4 << 20
_PIECE = 1 << 20
# Without types in older releases of NumPy.
_NPY: Any = np.lib.format


Source = Path | np.ndarray[Any, Any]
"""Bytes on disk (of a ``.npy`` file those of its array), or an array's in memory."""


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
    found = {name: _weight(name, weights.get(name, declared.get(name)), config) for name in names}
    return Package(text, modules, found)


def module_files(paths: list[str | os.PathLike[str]]) -> tuple[ModuleFile, ...]:
    """Variants of one module, by the names of their files."""
    return tuple(_module_file(Path(path)) for path in paths)


@contextmanager
def pieces(source: Source) -> Iterator[tuple[int, Iterator[memoryview]]]:
    """The bytes of a file or array, and how many there are; of a ``.npy`` file those of its array."""
    if isinstance(source, np.ndarray):
        flat = np.ascontiguousarray(source).reshape(-1).view(np.uint8)
        yield len(flat), _slices(memoryview(flat.data))
        return
    with open(source, "rb") as file:
        start = _npy_data(file, source) if source.suffix == ".npy" else 0
        size = os.fstat(file.fileno()).st_size
        if size == start:
            yield 0, iter(())
            return
        with mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ) as mapped:
            view = memoryview(mapped)
            rest = view[start:]
            try:
                yield len(rest), _slices(rest)
            finally:
                rest.release()
                view.release()


def _slices(view: memoryview) -> Iterator[memoryview]:
    for at in range(0, len(view), _PIECE):
        with view[at : at + _PIECE] as piece:
            yield piece


def _npy_data(file: Any, path: Path) -> int:
    """Where the data of a ``.npy`` file begins, if it is a plain array in the order that devices know."""
    try:
        version = _NPY.read_magic(file)
        if version == (1, 0):
            shape, fortran, dtype = _NPY.read_array_header_1_0(file)
        else:
            shape, fortran, dtype = _NPY.read_array_header_2_0(file)
    except (ValueError, OSError) as why:
        raise _wrong(path, f"no .npy file that can be read: {why}") from None
    if fortran and len(shape) > 1:
        raise _wrong(path, "an array in Fortran order: save it with numpy.ascontiguousarray")
    if dtype.hasobject or dtype.fields is not None or dtype.byteorder == ">" or dtype.kind not in "biufcV":
        raise _wrong(path, f"elements of {dtype}, expected little-endian numbers")
    start: int = file.tell()
    announced = int(np.prod(shape, dtype=object)) * dtype.itemsize
    there = os.fstat(file.fileno()).st_size - start
    if announced != there:
        raise _wrong(path, f"its header announces {announced} bytes of data, but there are {there}")
    return start


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


def _weight(name: str, given: Any, config: Path) -> Source:
    if isinstance(given, str | os.PathLike):
        path = Path(given)
        if path.is_file():
            return path
        raise InvalidArgument(f"weights {name!r}: there is no file {path}")
    if given is None:
        raise InvalidArgument(
            f"weights {name!r} have no contents: pass weights={{{name!r}: array or file}}, or name a file with "
            f'"weight_files" in {config}'
        )
    return _arrays.as_array(given, None)


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise TypeError(f"{value!r} where a name is expected")
    return value


def _wrong(path: Path, message: str) -> InvalidArgument:
    return InvalidArgument(f"{path}: {message}")
