"""Many kernels' assembly → the assembly of one module.

Triton compiles every kernel into a module of its own. Here their texts (PTX, or AMD's assembly) become one: what all modules
have is kept once, and names that only their module should know get its number. Pure text, no compiler.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from .errors import PackageError


def merge_ptx(kernels: Sequence[tuple[str, str, str]]) -> str:
    """Joins ``(kernel's new name, its name in the text, PTX)``."""
    header = ""
    shared_align = 0
    declarations: dict[str, None] = {}
    bodies = []
    for at, (name, old, text) in enumerate(kernels):
        found = re.search(r"^\.version.*\n(?:\s*//.*\n)*\.target.*\n\.address_size.*\n", text, re.M)
        if not found:
            raise PackageError(f"kernel {name}: its PTX has no header")
        if header and found.group() != header:
            raise PackageError(f"kernel {name}: its PTX is of another version than that of {kernels[0][0]}")
        header = found.group()
        text = _without_comments(text[found.end() :])
        for align in re.findall(r"^\s*\.extern \.shared \.align (\d+) \.b8 global_smem\[\];", text, re.M):
            shared_align = max(shared_align, int(align))
        text = re.sub(r"^\s*\.extern \.shared .*?global_smem\[\];\n?", "", text, flags=re.M)
        for declaration in re.findall(r"^\.extern \.func[^;{]*;", text, re.M):
            declarations[declaration] = None
        text = re.sub(r"^\.extern \.func[^;{]*;\n?", "", text, flags=re.M)
        for private in _private_ptx_names(text):
            text = _rename(text, private, f"m{at}_{private.lstrip('$_')}")
        # Only where it is the kernel's name: one called "add" is not the instruction.
        text = re.sub(rf"(?<=\.entry ){re.escape(old)}(?![\w$])", name, text)
        bodies.append(re.sub(rf"(?<![\w$]){re.escape(old)}(?=_param_\d)", name, text))
    shared = f".extern .shared .align {shared_align} .b8 global_smem[];\n" if shared_align else ""
    return header + "\n".join(declarations) + "\n" + shared + "\n".join(bodies)


def shareable(merged: str) -> str:
    """PTX that workers of several tenants can take, of a merged module's: nothing outside of it is called.

    An assertion that fails ends the kernel without its words, which nobody would read: Pappus drops what kernels print. What
    is left of it, and other variables that no kernel names, are left out: the device would restore them behind every call.
    """
    text = re.sub(r"\{\s*\.param(?:[^{};]*;)*?\s*call\.uni __assertfail,[^;]*;\s*\}(?:\s*trap;)?", "trap;", merged)
    if "__assertfail," not in text:
        text = re.sub(r"^\.extern \.func\s+__assertfail\b[^;]*;\n?", "", text, flags=re.M)
    for name in re.findall(r"^\.global (?:\.\w+ (?:\d+ )?)*([\w$]+)\s*(?:\[|=|;)", text, re.M):
        if len(re.findall(rf"(?<![\w$.]){re.escape(name)}(?![\w$])", text)) == 1:
            text = re.sub(rf"^\.global [^;{{=]*(?<![\w$.]){re.escape(name)}(?![\w$])[^;]*;\n?", "", text, flags=re.M)
    return text


def _without_comments(text: str) -> str:
    return re.sub(r"//.*$", "", text, flags=re.M)


def _private_ptx_names(text: str) -> list[str]:
    """Module variables and functions that are no kernels."""
    variables = re.findall(
        r"^\s*(?:\.visible |\.weak )?\.(?:global|const|shared) (?:\.\w+ (?:\d+ )?)*([\w$]+)\s*(?:\[|=|;)", text, re.M
    )
    functions = re.findall(r"^\s*(?:\.visible |\.weak )?\.func\s*(?:\([^)]*\)\s*)?([\w$]+)", text, re.M)
    return sorted({*variables, *functions})


def _rename(text: str, old: str, new: str) -> str:
    return re.sub(rf"(?<![\w$.]){re.escape(old)}(?![\w$])", new, text)


def merge_amdgcn(kernels: Sequence[tuple[str, str, str]]) -> str:
    """The same for AMD's assembly: bodies one after the other, one list of kernels in the metadata."""
    bodies, listed, rest = [], [], ""
    for at, (name, old, text) in enumerate(kernels):
        found = re.search(r"^\s*\.amdgpu_metadata\n(.*?)^\s*\.end_amdgpu_metadata\n?", text, re.M | re.S)
        parts = found and re.search(r"^amdhsa\.kernels:\n((?:[ ]+.*\n)*)((?:.*\n)*)", found.group(1), re.M)
        if not found or not parts:
            raise PackageError(f"kernel {name}: its assembly has no metadata")
        text = text[: found.start()] + text[found.end() :]
        # Labels, and what the linker does not see.
        text = re.sub(r"\.L(?=\w)", f".Lm{at}_", text)
        bodies.append(_rename_in_lines(text, old, name, rf"^\s*\.|^{re.escape(old)}:"))
        listed.append(_rename_in_lines(parts.group(1), old, name, r"^\s*-?\s*\.(?:name|symbol):"))
        rest = parts.group(2)
    metadata = f"\t.amdgpu_metadata\n---\namdhsa.kernels:\n{''.join(listed)}{rest}\t.end_amdgpu_metadata\n"
    return "\n".join(bodies) + metadata


def _rename_in_lines(text: str, old: str, new: str, lines: str) -> str:
    """Replaces a name, also in symbols made of it (``name.kd``), in directives and labels: never in instructions."""
    pattern = re.compile(rf"(?<![\w$.]){re.escape(old)}(?![\w$])")
    which = re.compile(lines)
    changed = (pattern.sub(new, line) if which.search(line) else line for line in text.splitlines(True))
    return "".join(changed)
