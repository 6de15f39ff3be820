"""A function in one file: ``NAME.pappus``, a zip archive without compression of the folder that ``_files`` reads.

Archives come from strangers. What is wrong with one is found before anything is unpacked; checksums are compared meanwhile.
"""

from __future__ import annotations

import stat
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from pappus.errors import InvalidArgument

SUFFIX = ".pappus"
_MOST_MEMBERS = 8192
_ENCRYPTED = 1
_PIECE = 1 << 20


@contextmanager
def unpacked(path: Path) -> Iterator[tuple[Path, bool]]:
    """The folder that an archive holds, until the end; any other path as it is. And whether it was an archive."""
    if path.suffix != SUFFIX or path.is_dir():
        yield path, False
        return
    with tempfile.TemporaryDirectory(prefix="pappus-") as name:
        folder = Path(name)
        try:
            with zipfile.ZipFile(path) as archive:
                members = _judge(path, archive)
                for member in members:
                    _unpack(archive, member, folder)
        except (zipfile.BadZipFile, EOFError, NotImplementedError, UnicodeDecodeError) as why:
            raise InvalidArgument(f"{path}: no archive that can be read: {why}") from None
        except OSError as why:
            raise InvalidArgument(f"{path}: {why.strerror or why}") from None
        yield folder, True


def _judge(path: Path, archive: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
    """The files of an archive, if all of them may be unpacked."""
    members = [member for member in archive.infolist() if not member.is_dir()]
    if len(archive.infolist()) > _MOST_MEMBERS:
        raise InvalidArgument(f"{path}: {len(archive.infolist())} members, at most {_MOST_MEMBERS} are taken")
    names: set[str] = set()
    for member in archive.infolist():
        name = member.filename.rstrip("/")
        parts = PurePosixPath(name).parts
        kind = stat.S_IFMT(member.external_attr >> 16)

        def refuse(why: str, name: str = name) -> InvalidArgument:
            return InvalidArgument(f"{path}: member {name!r} {why}")

        if not parts or name.startswith("/") or ".." in parts or "\\" in name or "\0" in name or "/".join(parts) != name:
            raise refuse("has a name that leads out of the folder, or none")
        if name in names:
            raise refuse("comes twice")
        if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
            raise refuse("is a link, or no file at all")
        if member.flag_bits & _ENCRYPTED:
            raise refuse("is encrypted")
        if member.compress_type != zipfile.ZIP_STORED or member.compress_size != member.file_size:
            raise refuse("is compressed: store it (zip -0)")
        names.add(name)
    # Members that share bytes would unpack to more than the archive has.
    size = path.stat().st_size
    if sum(member.file_size for member in members) > size:
        raise InvalidArgument(f"{path}: its members announce more bytes than the {size} that it has")
    return members


def _unpack(archive: zipfile.ZipFile, member: zipfile.ZipInfo, folder: Path) -> None:
    target = folder / member.filename
    target.parent.mkdir(parents=True, exist_ok=True)
    with archive.open(member) as source, target.open("xb") as file:
        while piece := source.read(_PIECE):
            file.write(piece)
