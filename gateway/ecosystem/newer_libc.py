"""Unpacks the C and C++ libraries of Debian 13 into a folder, where this machine's are older than a program wants: newer_libc.py FOLDER.

Each package is compared with the checksum that the mirror's index has for it.
"""

from __future__ import annotations

import hashlib
import lzma
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

MIRROR = "https://deb.debian.org/debian/"
INDEX = "dists/trixie/main/binary-amd64/Packages.xz"
PACKAGES = ["libc6", "libstdc++6", "libgcc-s1"]
# What the program wants.
GLIBC = (2, 38)


def get(path: str) -> bytes:
    with urllib.request.urlopen(MIRROR + path, timeout=60) as answer:
        return answer.read()


def main(folder: Path) -> None:
    if tuple(int(part) for part in os.confstr("CS_GNU_LIBC_VERSION").split()[1].split(".")[:2]) >= GLIBC:
        return
    sections = lzma.decompress(get(INDEX)).decode().split("\n\n")
    for name in PACKAGES:
        section = next(section for section in sections if section.startswith(f"Package: {name}\n"))
        fields = dict(line.split(": ", 1) for line in section.splitlines() if ": " in line and line[0] != " ")
        package = get(fields["Filename"])
        assert hashlib.sha256(package).hexdigest() == fields["SHA256"], f"{name} is not what the index says"
        file = folder.with_suffix(".deb")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(package)
        subprocess.run(["dpkg-deb", "--extract", file, folder], check=True)
        file.unlink()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
