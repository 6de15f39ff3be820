#!/usr/bin/env python3
"""Makes the packages of this folder and `cases.json`, which says how both clients must judge each of them.

The Rust client's test is `client/src/archive_tests.rs`, Python's `python/tests/test_archive.py`. Run it after a change here;
it writes the same bytes every time. Archives are put together by hand, since no writer makes wrong ones.

A row of `cases.json`: the file; `member`, whose name the refusal shows, and `refused`, words of it; neither where the
package is taken. `flips` are files of which every byte is changed, one at a time, by each of `masks`: for each mask a letter
for each byte, `t` where the changed package is taken and `r` where it is refused. These letters are what Python judged; they
are written with `--flips`, and the test of the other client is what makes them more than a record.
"""

from __future__ import annotations

import json
import struct
import sys
import zlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
MASKS = (0x01, 0x80, 0xFF)
FLIPPED = ("good", "wide")
REGULAR, LINK, PIPE = 0o100644, 0o120777, 0o010644
MAX32 = 0xFFFF_FFFF


@dataclass(frozen=True)
class Member:
    """A member, and what is wrong with it."""

    name: bytes
    content: bytes
    mode: int = REGULAR
    flags: int = 0
    method: int = 0
    # What the list of files says, where that is not so.
    size: int | None = None
    packed: int | None = None
    at: int | None = None
    checksum: int | None = None
    local_name: bytes | None = None
    extra: bytes = b""
    comment: bytes = b""
    # With a record of its length behind it, and none in front.
    streamed: bool = False


@dataclass(frozen=True)
class Archive:
    """An archive, and what is wrong with it."""

    members: tuple[Member, ...]
    front: bytes = b""
    comment: bytes = b""
    # Behind the list of files.
    gap: bytes = b""
    # Numbers of 64 bits wherever there can be some.
    wide: bool = False
    entries: int | None = None
    shift: int = 0

    def content(self) -> bytes:
        """Its bytes."""
        out, listed = bytearray(self.front), bytearray()
        for one in self.members:
            at = len(out) if one.at is None else one.at
            name = one.name if one.local_name is None else one.local_name
            checksum = zlib.crc32(one.content) if one.checksum is None else one.checksum
            size = len(one.content) if one.size is None else one.size
            packed = size if one.packed is None else one.packed
            told = (0, 0, 0) if one.streamed else (checksum, packed, size)
            flags = one.flags | (8 if one.streamed else 0)
            out += struct.pack("<IHHHHHIIIHH", 0x04034B50, 20, flags, one.method, 0, 0x21, *told, len(name), 0)
            out += name + one.content
            if one.streamed:
                out += struct.pack("<IIII", 0x08074B50, checksum, packed, size)
            extra = one.extra
            numbers = (packed, size, at)
            if self.wide:
                extra += struct.pack("<HHQQQ", 1, 24, size, packed, at)
                numbers = (MAX32, MAX32, MAX32)
            listed += struct.pack(
                "<IBBHHHHHIIIHHHHHII",
                *(0x02014B50, 20, 3, 20, flags, one.method, 0, 0x21, checksum, *numbers[:2]),
                *(len(one.name), len(extra), len(one.comment), 0, 0, one.mode << 16, numbers[2]),
            )
            listed += one.name + extra + one.comment
        offset = len(out) + self.shift
        entries = len(self.members) if self.entries is None else self.entries
        out += listed + self.gap
        if self.wide:
            at = len(out)
            out += struct.pack("<IQHHIIQQQQ", 0x06064B50, 44, 45, 45, 0, 0, entries, entries, len(listed), offset)
            out += struct.pack("<IIQI", 0x07064B50, 0, at, 1)
            told = (0xFFFF, 0xFFFF, MAX32, MAX32)
        else:
            told = (entries, entries, len(listed), offset)
        out += struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, *told, len(self.comment)) + self.comment
        return bytes(out)


def config(weights: str = "weights/w.npy", module: str = "lib/m.wasm", **more: Any) -> bytes:
    """A configuration that names these files."""
    document = {
        "modules": [{"module_name": "m", "path": module}],
        "kernels": [{"module_name": "m", "kernel_name": "k"}],
        "weight_files": {"W": weights},
        "blueprint": {
            "inputs": ["A"],
            "weights": ["W"],
            "buffers": {"B": {"Sizeof": "A"}},
            "outputs": ["B"],
            "control_flow": [],
        },
    }
    return json.dumps(document | more).encode()


def npy() -> bytes:
    """Two numbers."""
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }"
    return b"\x93NUMPY\1\0" + struct.pack("<H", 118) + header.ljust(117) + b"\n" + bytes(8)


GOOD = (
    Member(b"function.json", config()),
    Member(b"lib/m.wasm", b"\0asm\1\0\0\0"),
    Member(b"weights/w.npy", npy()),
)


def with_config(**named: Any) -> Archive:
    """A package whose configuration names these files."""
    return Archive((Member(b"function.json", config(**named)), *GOOD[1:]))


def and_member(name: bytes, **wrong: Any) -> Archive:
    """A good package with one more member."""
    return Archive((*GOOD, Member(name, **({"content": b"x"} | wrong))))


@dataclass
class Cases:
    """Rows, and the archives that they are about."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    archives: dict[str, bytes] = field(default_factory=dict)

    def taken(self, name: str, archive: Archive | bytes) -> None:
        """A package that both clients take."""
        self._add(name, archive, {})

    def refused(self, name: str, archive: Archive | bytes, words: str, member: str | None = None) -> None:
        """A package that both clients refuse, with these words."""
        self._add(name, archive, {"refused": words} | ({} if member is None else {"member": member}))

    def _add(self, name: str, archive: Archive | bytes, verdict: dict[str, Any]) -> None:
        assert name not in self.archives, name
        self.archives[name] = archive.content() if isinstance(archive, Archive) else archive
        self.rows.append({"file": f"{name}.pappus"} | verdict)


def cases() -> Cases:
    """All of them."""
    made = Cases()
    good = Archive(GOOD)
    whole = good.content()
    made.taken("good", good)
    made.taken("wide", replace(good, wide=True))
    made.taken("streamed", Archive(tuple(replace(one, streamed=True) for one in GOOD)))
    made.taken("extras", Archive(tuple(replace(one, extra=b"UT\1\0\0", comment=b"made by hand") for one in GOOD)))
    made.taken("without-modes", Archive(tuple(replace(one, mode=0) for one in GOOD)))
    made.taken("folders", Archive((Member(b"lib/", b"", mode=0o040755), *GOOD, Member(b"weights/", b"", mode=0))))
    made.taken("other-order", Archive(GOOD[::-1]))
    made.taken("more-files", and_member(b"read me.txt"))
    made.taken("name-in-utf8", and_member("Gewichte/größe.bin".encode(), flags=1 << 11))
    made.taken("name-in-utf8-unsaid", and_member("Gewichte/größe.bin".encode()))
    made.taken("empty-file", and_member(b"empty", content=b""))
    made.taken("named-with-dot", with_config(weights="./weights/w.npy", module="./lib/m.wasm"))
    made.taken("weights-missing", Archive(GOOD[:2]))
    made.taken("module-missing", Archive((GOOD[0], GOOD[2])))

    # What its configuration names.
    outside = "a package may name only files that are in it"
    for name, path in (
        ("weights-of-the-machine", "/etc/passwd"),
        ("weights-of-the-process", "/proc/self/environ"),
        ("weights-above", "../w.npy"),
        ("weights-in-and-out", "weights/../../w.npy"),
        ("weights-around", "lib/../weights/w.npy"),
        ("weights-twice-a-slash", "weights//w.npy"),
        ("weights-of-a-folder", "weights/"),
        ("weights-of-windows", "..\\w.npy"),
    ):
        made.refused(name, with_config(weights=path), outside, path)
    made.refused("module-of-the-machine", with_config(module="/usr/lib/m.wasm"), outside, "/usr/lib/m.wasm")
    made.refused("module-above", with_config(module="../m.wasm"), outside, "../m.wasm")

    # Members.
    no_name = "has no name for a file of a package"
    for name, path in (
        ("member-of-the-machine", "/etc/passwd"),
        ("member-above", "../x"),
        ("member-in-and-out", "a/../../x"),
        ("member-twice-a-slash", "a//b"),
        ("member-here", "./a"),
        ("member-ends-here", "a/."),
        ("member-of-windows", "c:x"),
    ):
        made.refused(name, and_member(path.encode()), no_name, path)
    made.refused("member-without-name", and_member(b""), no_name)
    made.refused("member-root", and_member(b"/", content=b""), no_name)
    made.refused("member-backslash", and_member(b"a\\b"), no_name)
    made.refused("member-zero-byte", and_member(b"function.json\0.txt"), no_name)
    made.refused("member-line", and_member(b"a\nb"), no_name)
    made.refused("member-no-text", and_member(b"\xff\xfe"), no_name)
    made.refused("member-long-name", and_member(b"a" * 1025), no_name)
    made.refused("member-twice", and_member(b"lib/m.wasm"), "comes twice", "lib/m.wasm")
    made.refused("config-twice", and_member(b"function.json", content=b"{}"), "comes twice", "function.json")
    made.refused("link", and_member(b"link", content=b"/etc/passwd", mode=LINK), "is a link, or no plain file", "link")
    made.refused("pipe", and_member(b"pipe", mode=PIPE), "is a link, or no plain file", "pipe")
    made.refused("folder-of-bytes", and_member(b"x", mode=0o040755), "is a link, or no plain file", "x")
    made.refused("encrypted", and_member(b"secret", flags=1), "is encrypted", "secret")
    squeezed = zlib.compress(b"x" * 99)[2:-4]
    compressed = and_member(b"big", content=squeezed, method=8, size=99, packed=len(squeezed))
    made.refused("compressed", compressed, "is compressed", "big")
    made.refused("grown", and_member(b"big", size=99, packed=1), "is compressed", "big")
    made.refused("damaged", and_member(b"w", checksum=1), "is damaged", "w")
    made.refused("named-otherwise", and_member(b"a", local_name=b"b"), "does not lie where", "a")
    made.refused("too-long", and_member(b"a", size=1 << 20), "does not lie where", "a")
    made.refused("elsewhere", and_member(b"a", at=1 << 30), "does not lie where", "a")
    made.refused("overlaps", and_member(b"a", at=0), "overlaps", "a")
    made.refused("overlaps-within", and_member(b"a", at=3), "overlaps", "a")

    # The archive.
    made.refused("without-config", Archive((Member(b"other.json", config()), *GOOD[1:])), "no function.json in it")
    made.refused("config-in-a-folder", Archive((Member(b"f/function.json", config()),)), "no function.json in it")
    made.refused("many", replace(good, entries=8193), "more than 8192 files")
    made.refused("fewer-than-listed", replace(good, entries=2), "list of files is damaged")
    made.refused("more-than-listed", replace(good, entries=4), "list of files is damaged")
    made.taken("begins-otherwise", replace(good, front=b"#!/bin/sh\n"))
    made.refused("in-front-unsaid", b"#!/bin/sh\n" + whole, "bytes stand in front")
    made.refused("behind-the-list", replace(good, gap=b"gap"), "bytes stand in front")
    made.refused("comment", replace(good, comment=b"words"), "does not end as a zip archive")
    made.refused("two-ends", replace(good, comment=Archive(GOOD[:1]).content()), "bytes stand in front")
    made.refused("cut-in-front", whole[40:], "bytes stand in front")
    made.refused("cut-behind", whole[:-1], "does not end as a zip archive")
    made.refused("nothing", b"", "does not end as a zip archive")
    made.refused("json", config(), "does not end as a zip archive")
    made.refused("zeros", bytes(4096), "does not end as a zip archive")
    return made


def flips(made: Cases, old: dict[str, Any]) -> dict[str, Any]:
    """How every changed byte is judged: by Python, where that is asked for."""
    if "--flips" not in sys.argv[1:]:
        found: dict[str, Any] = old.get("flips", {})
        return found
    sys.path.insert(0, str(HERE.parent.parent / "python/tests"))
    from test_archive import judge_flips  # noqa: PLC0415

    return {f"{name}.pappus": [judge_flips(made.archives[name], mask) for mask in MASKS] for name in FLIPPED}


def main() -> None:
    """Writes everything."""
    made = cases()
    index = HERE / "cases.json"
    old = json.loads(index.read_text()) if index.exists() else {}
    for stale in set(HERE.glob("*.pappus")) - {HERE / f"{name}.pappus" for name in made.archives}:
        stale.unlink()
    for name, content in made.archives.items():
        (HERE / f"{name}.pappus").write_bytes(content)
    document = {"cases": made.rows, "masks": MASKS, "flips": flips(made, old)}
    index.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
