"""Files of packages that were saved, a folder or one ``.pappus`` file: one of them read, some unpacked, one replaced.

What :mod:`.files` writes. A file that is replaced is replaced completely or not at all, also in an archive.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from .errors import PackageError

# The first moment that zip archives know.
EPOCH = (1980, 1, 1, 0, 0, 0)
EXTENSION = ".pappus"
_PIECE = 1 << 20


def read(package: Path, member: str) -> bytes | None:
    """A file's bytes; none where the package, or the file in it, is not there.

    A ``.pappus`` file that is no archive raises :class:`PackageError`.
    """
    try:
        if package.is_dir():
            return (package / member).read_bytes()
        with _archive(package) as archive:
            return archive.read(member)
    except (FileNotFoundError, KeyError):
        return None


@contextlib.contextmanager
def unpacked(package: Path, under: str) -> Iterator[Path]:
    """The package as a folder with the files below ``under``: itself, or for a time what is in the archive."""
    if package.is_dir():
        yield package
        return
    with tempfile.TemporaryDirectory(prefix="pappus-") as made:
        with _archive(package) as archive:
            for name in archive.namelist():
                if name.startswith(f"{under}/"):
                    # This leaves out what would lead elsewhere.
                    archive.extract(name, made)
        yield Path(made)


def replace(package: Path, member: str, content: bytes) -> None:
    """Writes a file into a package, in the place of one of this name; all else stays as it is."""
    target = package / member if package.is_dir() else package
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=".", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as out:
            if package.is_dir():
                out.write(content)
            else:
                _rewrite(package, out, member, content)
        mode = target.stat().st_mode if target.exists() else 0o666 & ~umask()
        os.chmod(name, mode & 0o777)
        os.replace(name, target)
    except BaseException:
        os.unlink(name)
        raise


def info(member: str) -> zipfile.ZipInfo:
    """A member of an archive: as it is, without a time, so that equal packages are equal files."""
    made = zipfile.ZipInfo(member, EPOCH)
    made.external_attr = 0o644 << 16
    return made


def umask() -> int:
    """The permissions that new files do not get."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _rewrite(package: Path, out: object, member: str, content: bytes) -> None:
    with _archive(package) as old, zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as new:  # type: ignore[call-overload]
        for one in old.infolist():
            if one.filename == member or one.is_dir():
                continue
            with old.open(one) as source, new.open(info(one.filename), "w", force_zip64=one.file_size >= 1 << 31) as copy:
                shutil.copyfileobj(source, copy, _PIECE)
        new.writestr(info(member), content)


def _archive(package: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(package)
    except zipfile.BadZipFile as error:
        raise PackageError(f"{package} is no package: {error}") from error
