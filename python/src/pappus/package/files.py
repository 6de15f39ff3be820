"""Packages on disk: a folder with ``function.json``, ``modules/`` and ``weights/``, or the same as one ``.pappus`` file.

The file is a zip archive without compression; two packages of the same function are equal byte for byte.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import saved
from .errors import PackageError
from .plan import Plan
from .targets import Target

if TYPE_CHECKING:
    from .interpret import Session

CONFIG = "function.json"
MAX_CONFIG_BYTES = 4 << 20


@dataclass(frozen=True)
class Weight:
    """A weight's file, relative to the package, and its contents."""

    path: str
    array: Any

    def content(self) -> bytes:
        """The file's bytes."""
        import numpy

        array = numpy.ascontiguousarray(self.array)
        if not self.path.endswith(".npy"):
            return array.tobytes()
        out = io.BytesIO()
        # Older releases of NumPy do not say what it takes.
        write: Any = numpy.lib.format.write_array
        # One dimension too many: ascontiguousarray makes a vector of a scalar.
        write(out, array.reshape(self.array.shape), allow_pickle=False)
        return out.getvalue()


@dataclass(frozen=True)
class Package:
    """A function with its code and weights, ready to be registered."""

    document: Mapping[str, Any]
    modules: Mapping[str, bytes]
    weights: Mapping[str, Weight]
    plan: Plan
    targets: tuple[Target, ...]
    # Further files, such as measurements, by path relative to the package.
    extra: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def blueprint(self) -> Mapping[str, Any]:
        """Buffers, launches and outputs, as in ``function.json``."""
        blueprint: Mapping[str, Any] = self.document["blueprint"]
        return blueprint

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Writes a ``.pappus`` file, if ``path`` ends so, or a folder; all of it or nothing.

        Both are what ``pappus function add NAME PATH`` takes.
        """
        path = Path(path)
        if path.exists() and not overwrite:
            raise PackageError(f"{path} exists: remove it, or say overwrite=True")
        if path.is_dir() and path.suffix == saved.EXTENSION:
            raise PackageError(f"{path} is a folder")
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == saved.EXTENSION:
            self._save_file(path)
        else:
            self._save_folder(path)
        return path

    def interpret(self, **inputs: Any) -> dict[str, Any]:
        """Runs the function on the processor by Triton's interpreter: inputs and outputs are numpy arrays.

        This checks the blueprint and the kernels' sources, not their machine code; it is slow. Calls of a function with state
        are made in a :meth:`session`.
        """
        self._check_sources()
        from .interpret import interpret

        return interpret(self, inputs)

    def session(self) -> Session:
        """A session on the processor: called as :meth:`interpret` is, and its state stays from one call to the next."""
        self._check_sources()
        from .interpret import Session

        return Session(self)

    def _check_sources(self) -> None:
        if not self.plan.kernels:
            raise PackageError("only machine code of these kernels is there, which the processor does not run")

    def files(self) -> Iterator[tuple[str, bytes]]:
        """Paths relative to the package, and contents, ``function.json`` first."""
        config = json.dumps(self.document, indent=1).encode()
        if len(config) > MAX_CONFIG_BYTES:
            config = json.dumps(self.document, separators=(",", ":")).encode()
        if len(config) > MAX_CONFIG_BYTES:
            raise PackageError(f"the blueprint has {len(config)} bytes, at most {MAX_CONFIG_BYTES} are read")
        yield CONFIG, config
        yield from self.modules.items()
        for weight in self.weights.values():
            yield weight.path, weight.content()
        yield from self.extra.items()

    def _save_file(self, path: Path) -> None:
        handle, name = tempfile.mkstemp(prefix=".", suffix=saved.EXTENSION, dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as out, zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
                for member, content in self.files():
                    archive.writestr(saved.info(member), content)
            os.chmod(name, 0o666 & ~saved.umask())
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise

    def _save_folder(self, path: Path) -> None:
        if path.exists() and not (path / CONFIG).is_file() and any(path.iterdir()):
            raise PackageError(f"{path} is a folder with other things in it")
        made = Path(tempfile.mkdtemp(prefix=".", dir=path.parent))
        try:
            for member, content in self.files():
                target = made / member
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
            os.chmod(made, 0o777 & ~saved.umask())
            if path.exists():
                shutil.rmtree(path)
            os.replace(made, path)
        except BaseException:
            shutil.rmtree(made, ignore_errors=True)
            raise
