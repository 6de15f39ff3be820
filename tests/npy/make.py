#!/usr/bin/env python3
"""Makes the small files beside it, and cases.json: for each file and each declared type whether the file is taken for it,
and which bytes are sent then. The Rust client and the Python package read both, and must agree on every row
(client/src/npy_tests.rs, client/src/input/npy_tests.rs, python/tests/test_npy.py).

Everything is written by hand here, without NumPy and without Pappus, so that what is expected is nobody's opinion of it.
"""

from __future__ import annotations

import itertools
import json
import math
import struct
import sys
from pathlib import Path
from typing import Any

# Pappus's name, NumPy's, and struct's.
TYPES = {
    "u8": ("u1", "B"),
    "i8": ("i1", "b"),
    "u16": ("u2", "H"),
    "i16": ("i2", "h"),
    "u32": ("u4", "I"),
    "i32": ("i4", "i"),
    "u64": ("u8", "Q"),
    "i64": ("i8", "q"),
    "f16": ("f2", "e"),
    "f32": ("f4", "f"),
    "f64": ("f8", "d"),
    "bool": ("b1", "?"),
}
# A type of the same width, which reads the same bytes as other numbers.
SAME_WIDTH = {
    "u8": "i8", "i8": "u8", "u16": "f16", "i16": "u16", "u32": "f32", "i32": "u32", "u64": "i64", "i64": "f64", "f16": "bf16",
    "f32": "i32", "f64": "u64", "bool": "u8",
}  # fmt: skip

files: dict[str, bytes] = {}
cases: list[dict[str, Any]] = []


def case(name: str, content: bytes, what: str, sent: bytes | None = None, fits: str = "", misfits: str = "") -> None:
    """A file that is taken as `sent` for these declared types, `-` where none is declared, and refused for the others.
    Without `sent` it is refused for every type."""
    assert name not in files
    files[name] = content
    if sent is None:
        fits, misfits = "", "- u8 f32 f32[2,3]"
    rows = {declared: True for declared in fits.split()} | {declared: False for declared in misfits.split()}
    cases.append({"file": name, "what": what, "sent": None if sent is None else sent.hex(), "declared": rows})


def header(descr: str, shape: str, fortran: str = "False", version: tuple[int, int] = (1, 0), text: str | None = None) -> bytes:
    dictionary = text or f"{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}, }}"
    before = 10 if version[0] == 1 else 12
    padded = dictionary.encode("latin1" if version[0] < 3 else "utf8")
    padded += b" " * (-(before + len(padded) + 1) % 64) + b"\n"
    length = struct.pack("<H" if version[0] == 1 else "<I", len(padded))
    return b"\x93NUMPY" + bytes(version) + length + padded


def numbers(values: list[Any], code: str, order: str) -> bytes:
    return struct.pack(f"{order}{len(values)}{code}", *values)


def in_columns(values: list[Any], shape: tuple[int, ...]) -> list[Any]:
    """Values that lie row by row, column by column."""
    strides = [math.prod(shape[at + 1 :]) for at in range(len(shape))]
    indices = itertools.product(*(range(size) for size in reversed(shape)))
    return [values[sum(i * s for i, s in zip(reversed(index), strides, strict=True))] for index in indices]


def array(dtype: str, order: str, shape: tuple[int, ...], values: list[Any], columns: bool = False, **more: Any) -> tuple[bytes, bytes]:
    """A file with an array, and what is sent of it."""
    descr, code = TYPES[dtype]
    lying = in_columns(values, shape) if columns else values
    dims = str(shape).replace(" ", "")
    head = header(f"'{'|' if descr[1] == '1' else order}{descr}'", dims, str(columns), **more)
    return head + numbers(lying, code, order), numbers(values, code, "<")


def plain_types() -> None:
    values = {"bool": [True, False, True, True], "u": [0, 1, 2, 250], "i": [-100, -1, 0, 99], "f": [-1.5, 0.0, 0.25, 6e4]}
    for dtype, (descr, _) in TYPES.items():
        given = values["bool"] if dtype == "bool" else list(values[dtype[0]])
        width = int(descr[1])
        if dtype[0] in "ui" and width > 1:
            # Every byte of it counts.
            given[3] = int.from_bytes(bytes(range(1, width + 1)), "little")
        for order in "<>" if width > 1 else "<":
            content, sent = array(dtype, order, (4,), given)
            end = "be" if order == ">" else "le"
            fits = f"- {dtype} {dtype}[4]"
            misfits = f"{dtype}[5] {dtype}[2,2] {dtype}[4,1] {SAME_WIDTH[dtype]} {SAME_WIDTH[dtype]}[4]"
            case(f"{dtype}-{end}.npy", content, f"four numbers, {'big' if order == '>' else 'little'}-endian", sent, fits, misfits)


def orders_and_shapes() -> None:
    six = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    fits, misfits = "- f32 f32[2,3] f32[6]", "f32[3,2] f32[2,4] f32[1,2,3] f32[7] i32[2,3] f64[2,3]"
    for order, columns in itertools.product("<>", (False, True)):
        content, sent = array("f32", order, (2, 3), six, columns)
        name = f"matrix-{'be' if order == '>' else 'le'}-{'columns' if columns else 'rows'}.npy"
        case(name, content, "2 × 3", sent, fits, misfits)
    cube = [3 * n - 7 for n in range(12)]
    for name, order in (("cube-columns.npy", "<"), ("cube-be-columns.npy", ">")):
        content, sent = array("i64", order, (2, 3, 2), cube, True)
        case(name, content, "2 × 3 × 2", sent, "- i64[2,3,2] i64[12]", "i64[2,2,3] i64[6,2] u64[2,3,2]")
    content, sent = array("i16", "<", (6,), [1, 2, 3, 4, 5, 6], True)
    case("vector-columns.npy", content, "a vector has but one order", sent, "- i16[6]", "i16[6,1] i16[1,6]")
    content, sent = array("i16", "<", (6, 1), [1, 2, 3, 4, 5, 6], True)
    case("column.npy", content, "6 × 1", sent, "- i16[6,1] i16[6]", "i16[1,6] i16[2,3]")
    content, sent = array("f64", ">", (), [0.1])
    case("number-be.npy", content, "one number without dimensions", sent, "- f64 f64[] f64[1]", "f64[2] f64[1,1] i64[]")
    content, sent = array("f64", "<", (1,), [0.1])
    case("number-in-row.npy", content, "one number in one dimension", sent, "- f64[] f64[1]", "f64[0] f64[1,1]")
    content, sent = array("f32", "<", (0,), [])
    case("none.npy", content, "no numbers", sent, "- f32 f32[0]", "f32[1] f32[0,3] f32[]")
    content, sent = array("f32", ">", (0, 3), [], True)
    case("none-of-three.npy", content, "no rows", sent, "- f32[0,3] f32[0]", "f32[3,0] f32[1,3] f32[3]")
    content, sent = array("u8", "<", (1,) * 32, [7])
    case("deep.npy", content, "as many dimensions as an array may have", sent, "- u8 u8[1]", "u8[1,1] i8")
    special = [math.inf, -math.inf, -0.0, 1e-45]
    content, sent = array("f32", ">", (4,), special)
    case("special-be.npy", content, "infinities, a negative zero, the smallest number", sent, "- f32[4]", "i32[4]")


def no_names_in_blueprints() -> None:
    parts = [1.0, -2.0, 3.0, 4.0]
    for descr, code in (("c8", "f"), ("c16", "d")):
        for order in "<>":
            content = header(f"'{order}{descr}'", "(2,)") + numbers(parts, code, order)
            name = f"{descr}-{'be' if order == '>' else 'le'}.npy"
            sent = numbers(parts, code, "<")
            case(name, content, "complex numbers are pairs of floats", sent, "-", "f32 f64 f32[4] u8")
    halves = bytes.fromhex("803f00c0")
    for name, descr in (("bf16.npy", "<V2"), ("bf16-void.npy", "|V2")):
        content = header(f"'{descr}'", "(2,)") + halves
        case(name, content, "bf16 as ml_dtypes saves it", halves, "- bf16 bf16[2]", "bf16[3] bf16[2,1] u16 f16[2]")
    case("fp8.npy", header("'|V1'", "(3,)") + b"\x38\x40\xc0", "bytes of no type", b"\x38\x40\xc0", "-", "u8 u8[3] i8")


def writers() -> None:
    """Headers as other programs and versions write them."""
    six = numbers([1, 2, 3, 4, 5, 6], "i", "<")
    fits, misfits = "- i32[2,3]", "f32[2,3]"
    for major in (2, 3):
        content = header("'<i4'", "(2, 3)", version=(major, 0)) + six
        case(f"version-{major}.npy", content, "a later version of the format", six, fits, misfits)
    text = '{"shape":(2,3),"fortran_order":False,"descr":"<i4"}'
    case("other-writer.npy", header("", "", text=text) + six, "keys in another order", six, fits, misfits)
    text = "{'descr': '<i4', 'fortran_order': False, 'shape': (2, 3,)}"
    case("last-comma.npy", header("", "", text=text) + six, "a comma behind the last dimension", six, fits, misfits)


def refused() -> None:
    six = numbers([1, 2, 3, 4, 5, 6], "f", "<")
    good = header("'<f4'", "(2, 3)")
    case("cut-data.npy", good + six[:-1], "the last byte is missing")
    case("more-data.npy", good + six + b"\0", "a byte too many")
    case("no-data.npy", good, "ends behind its header")
    case("cut-header.npy", good[:40], "ends in its header")
    case("cut-length.npy", good[:9], "ends in the length of its header")
    case("magic-alone.npy", good[:6], "ends behind its first bytes")
    case("nothing.npy", b"", "no bytes at all")
    case("other-magic.npy", b"\x94" + good[1:] + six, "begins as no .npy file does")
    case("zip.npy", b"PK\x03\x04" + bytes(60), "an .npz archive under another name")
    case("version-4.npy", good[:6] + b"\x04\0" + good[8:] + six, "a version that there is not")
    case("version-1-1.npy", good[:6] + b"\x01\x01" + good[8:] + six, "a version that there is not")
    huge = header("'<f4'", "(2, 3)", version=(2, 0))
    case("huge-header.npy", huge[:8] + b"\xff\xff\xff\x7f" + huge[12:] + six, "announces a header of 2 GiB")
    case("garbled.npy", good[:10] + bytes(range(128, 128 + len(good) - 10)) + six, "a header that is no text")
    for name, text in {
        "no-dictionary.npy": "('<f4', False, (2, 3))",
        "no-descr.npy": "{'fortran_order': False, 'shape': (2, 3), }",
        "no-order.npy": "{'descr': '<f4', 'shape': (2, 3), }",
        "no-shape.npy": "{'descr': '<f4', 'fortran_order': False, }",
        "more-keys.npy": "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), 'more': 1, }",
        "order-of-0.npy": "{'descr': '<f4', 'fortran_order': 0, 'shape': (2, 3), }",
        "shape-of-6.npy": "{'descr': '<f4', 'fortran_order': False, 'shape': 6, }",
        "not-ended.npy": "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), ",
    }.items():
        case(name, header("", "", text=text) + six, "a header that NumPy does not write")
    case("negative.npy", header("'<f4'", "(-2, -3)") + six, "negative dimensions")
    case("fraction.npy", header("'<f4'", "(2.0, 3)") + six, "a dimension that is no integer")
    case("too-deep.npy", header("'|u1'", str((1,) * 33)) + b"\7", "more dimensions than an array has")
    case("too-large.npy", header("'<f4'", f"({1 << 40}, {1 << 40})") + six, "more bytes than can be counted")
    for name, descr, width in (
        ("objects.npy", "'|O'", 8),
        ("text.npy", "'<U1'", 4),
        ("text-bytes.npy", "'|S4'", 4),
        ("dates.npy", "'<M8[ns]'", 8),
        ("durations.npy", "'<m8[s]'", 8),
        ("long-double.npy", "'<f16'", 16),
        ("long-complex.npy", "'<c32'", 32),
        ("no-width.npy", "'|V0'", 0),
        ("no-type.npy", "'<f3'", 3),
        ("structures.npy", "[('a', '<f4'), ('b', '<i4')]", 8),
    ):
        case(name, header(descr, "(3,)") + bytes(3 * width), "elements that no device knows")


def plain_bytes() -> None:
    six = numbers([1, 2, 3, 4, 5, 6], "f", "<")
    fits, misfits = "- f32 f32[6] f32[2,3] f32[3,2] i64[3] bf16[12]", "f32[7] f32[2,4] f32[] f64[2]"
    case("bytes.bin", six, "says nothing of itself: its bytes are taken as they are", six, fits, misfits)
    case("seven.bin", b"1234567", "no whole elements", b"1234567", "- u8 i8[7] bool[7]", "u16 f32 u8[8] u8[7,2]")
    case("no-bytes.bin", b"", "no bytes", b"", "- f32 f32[0] f32[0,3]", "f32[1] f32[] f32[1,3]")
    content, _ = array("f32", "<", (2, 3), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    case("array.bin", content, "an array under another name is bytes", content, "- u8", "f32[2,3] f32[6]")


def main(folder: Path) -> None:
    for make in (plain_types, orders_and_shapes, no_names_in_blueprints, writers, refused, plain_bytes):
        make()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    lines = ",\n".join(json.dumps(one, ensure_ascii=False) for one in cases)
    (folder / "cases.json").write_text(f"[\n{lines}\n]\n", encoding="utf8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
