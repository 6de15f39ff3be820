"""Pages in docs/examples: all of their Python runs, one block after the other."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

PAGES = Path(__file__).resolve().parents[2] / "docs/examples"
pages = sorted(PAGES.glob("*.md"))


@pytest.mark.parametrize("page", pages, ids=lambda page: page.stem)
def test_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S)
    assert blocks
    # A file, since Triton reads the sources of its kernels.
    file = tmp_path / f"{page.stem}_page.py"
    file.write_text("\n".join(blocks))
    monkeypatch.chdir(tmp_path)
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(importlib.util.module_from_spec(spec))


def test_there_are_pages() -> None:
    assert {page.stem for page in pages} >= {"triton", "resnet18", "gpt", "image"}
