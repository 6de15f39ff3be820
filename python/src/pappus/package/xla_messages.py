"""XLA's messages, as the installed release has them: their descriptions are read out of its plugin for CUDA.

XLA serialises executables as protocol buffers that are its own affair: names and numbers of fields change between releases.
The compiled plugin holds the descriptions of its messages, so what it wrote is read by these, whichever release it is.
"""

from __future__ import annotations

import importlib
import mmap
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError, Message

from pappus._extras import install

from . import riegeli
from .errors import PackageError

_PLUGINS = ("jax_plugins.xla_cuda13", "jax_plugins.xla_cuda12")
_LIBRARY = "xla_cuda_plugin.so"

# Where the messages lie that are used here.
_FILES = (
    "xla/service/gpu/gpu_executable.proto",
    "xla/util/split_proto/split_proto.proto",
    "xla/pjrt/proto/compile_options.proto",
)
_EXECUTABLE = "xla.gpu.GpuExecutableProto"


class Messages:
    """The message types of a plugin."""

    def __init__(self, library: Path) -> None:
        self._pool = descriptor_pool.DescriptorPool()
        self._added: set[str] = set()
        with library.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as content:
            for name in _FILES:
                self._add(name, content, library)

    def executable(self, serialized: bytes) -> Any:
        """The executable in what ``runtime_executable().serialize()`` returns: a header, then a file of records."""
        start = serialized.find(riegeli.SIGNATURE)
        if start < 0:
            raise PackageError("this release of JAX serialises executables in a way that is not known here")
        outer = self._joined("xla.ExecutableAndOptionsProto", riegeli.read_records(serialized[start:]))
        return self._joined(_EXECUTABLE, riegeli.read_records(outer.serialized_executable))

    def _joined(self, name: str, records: list[bytes]) -> Any:
        """A message that was split: the first record tells what each of the others holds."""
        manifest: Any = self._class("xla.SplitProtoManifest").FromString(records[0])
        if manifest.result_proto_type != name:
            raise PackageError(f"XLA wrote a {manifest.result_proto_type}, a {name} was expected")
        if len(manifest.records) != len(records) - 1:
            raise PackageError(f"XLA wrote {len(records) - 1} parts of a {name}, {len(manifest.records)} are announced")
        message = self._class(name)()
        for part, data in zip(manifest.records, records[1:], strict=True):
            kind = part.WhichOneof("record_type")
            if kind == "proto_merge_record":
                message.MergeFromString(data)
            elif kind == "field_override_record":
                _override(message, [step.field_number for step in part.field_override_record.field_path], data)
            else:
                raise PackageError(f"XLA wrote a part of a {name} as {kind}, which is not read here")
        return message

    def _class(self, name: str) -> type[Message]:
        try:
            return message_factory.GetMessageClass(self._pool.FindMessageTypeByName(name))
        except KeyError:
            raise PackageError(f"this release of XLA has no message {name}") from None

    def _add(self, name: str, content: mmap.mmap, library: Path) -> None:
        """Adds a file's description and, before it, those that it imports."""
        if name in self._added:
            return
        self._added.add(name)
        # A description begins with its own name, as field 1.
        start = content.find(b"\n" + bytes([len(name)]) + name.encode())
        if start < 0:
            raise PackageError(f"{library} does not describe {name}: this release of XLA is not known here")
        try:
            described = descriptor_pb2.FileDescriptorProto.FromString(content[start : _end(content, start)])
        except (DecodeError, IndexError) as error:
            raise PackageError(f"{library} describes {name} in a way that is not known here: {error}") from error
        for imported in described.dependency:
            self._add(imported, content, library)
        self._pool.Add(described)


def find_library() -> Path:
    """The installed plugin of JAX for CUDA."""
    for name in _PLUGINS:
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError:
            continue
        library = Path(str(module.__file__)).with_name(_LIBRARY)
        if library.is_file():
            return library
    raise PackageError(f"JAX's plugin for CUDA is missing: {install('jax')}")


def _end(content: mmap.mmap, start: int) -> int:
    """Where a file's description ends: the first bytes that are no field of one, or its name again."""
    at, fields = start, descriptor_pb2.FileDescriptorProto.DESCRIPTOR.fields_by_number
    while True:
        tag, after = riegeli.varint(content, at)  # type: ignore[arg-type]
        number, wire = tag >> 3, tag & 7
        if number not in fields or wire not in (0, 2) or (number == 1 and at != start):
            return at
        value, after = riegeli.varint(content, after)  # type: ignore[arg-type]
        at = after + value if wire == 2 else after


def _override(message: Any, path: list[int], data: bytes) -> None:
    """Sets one field, given by the numbers that lead to it."""
    for number in path[:-1]:
        message = getattr(message, message.DESCRIPTOR.fields_by_number[number].name)
    field = message.DESCRIPTOR.fields_by_number[path[-1]]
    setattr(message, field.name, data.decode() if field.type == field.TYPE_STRING else data)
