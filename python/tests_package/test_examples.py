"""Pages in docs/examples: all of their Python runs, one block after the other."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest

from fixture import REPOSITORY, Supervisor

PAGES = Path(__file__).resolve().parents[2] / "docs/examples"
pages = sorted(PAGES.glob("*.md"))


def run(page: Path, folder: Path) -> Any:
    """The names that a page's blocks have defined."""
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S)
    assert blocks
    # A file, since Triton reads the sources of its kernels.
    file = folder / f"{page.stem}_page.py"
    file.write_text("\n".join(blocks))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", [page for page in pages if page.stem != "gpt"], ids=lambda page: page.stem)
def test_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run(page, tmp_path)


def doubling_step(shape: list[int]) -> dict[str, Any]:
    """A function with the inputs and outputs of the page's step, with code for the CPU device: caches become their sum."""
    size = {"Sizeof": "keys"}
    one = {"Absolute": 1}
    launch = {f"{kind}_dim_{axis}": one for kind in ("grid", "block") for axis in "xyz"} | {"shared_mem_bytes": {"Absolute": 0}}
    launch |= {"grid_dim_x": {"CeilDiv": [size, {"Absolute": 1024}]}, "block_dim_x": {"Absolute": 256}}

    def add(out: str, count: Any) -> dict[str, Any]:
        return {"ExecKernel": ["vec_add_f", [*({"Ptr": name} for name in ("keys", "values", out)), {"I64": count}], launch]}

    cached = {"dtype": "f32", "shape": [{"Absolute": extent} for extent in shape]}
    elements = {"CeilDiv": [size, {"Absolute": 4}]}
    number = {"dtype": "i64", "shape": [one]}
    return {
        "modules": [{"module_name": "linalg", "path": str(REPOSITORY / "kernels/built/linalg.wasm")}],
        "kernels": [{"module_name": "linalg", "kernel_name": "vec_add_f"}],
        "blueprint": {
            "inputs": ["token", "place", "keys", "values"],
            "buffers": {"scores": {"Absolute": 256}, "next_keys": size, "next_values": size},
            "outputs": ["scores", "next_keys", "next_values"],
            "types": {
                "token": number,
                "place": number,
                "scores": {"dtype": "f32", "shape": [one, {"Absolute": 64}]},
                **dict.fromkeys(("keys", "values", "next_keys", "next_values"), cached),
            },
            "control_flow": [
                add("next_keys", elements),
                add("next_values", elements),
                {
                    "Copy": {
                        "from": "next_keys",
                        "from_offset": {"Absolute": 0},
                        "to": "scores",
                        "to_offset": {"Absolute": 0},
                        "bytes": {"Absolute": 256},
                    }
                },
            ],
        },
    }


def test_the_transformers_page_runs_and_its_caches_stay_in_the_arena(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = run(PAGES / "gpt.md", tmp_path)
    config = tmp_path / "step.json"
    config.write_text(json.dumps(doubling_step(list(page.cache.shape))))
    supervisor = Supervisor(device="cpu:workers=1,memory=64MiB")
    try:
        with supervisor.connect() as client:
            client.add_function("step", config)
            made: list[Any] = []
            arena = client.arena
            monkeypatch.setattr(client, "arena", lambda size: made.append(arena(size)) or made[-1])
            caches: list[Any] = []

            def watched(call: Any, empty: Any, first: int, count: int) -> list[int]:
                def kept(shape: Any) -> Any:
                    caches.append(empty(shape))
                    return caches[-1]

                def one(outputs: Any, **inputs: Any) -> Any:
                    if inputs["place"][0] == 0:
                        inputs["keys"][:] = 1
                    answer = call(outputs, **inputs)
                    # Written where the next call reads it.
                    assert all(answer[name] is place for name, place in outputs.items())
                    return answer

                return page_write(one, kept, first, count)

            page_write, page.write = page.write, watched
            assert page.through_an_arena(client, 3, 5) == [0] * 5
            assert len(made) == 1
            # Keys of 1 and values of 0: after one call 1 and 1, after five 16; the fourth left 8 in the other cache.
            assert [set(part.flat) for part in caches] == [{8.0}, {8.0}, {16.0}, {16.0}]
    finally:
        supervisor.stop()


def test_there_are_pages() -> None:
    assert {page.stem for page in pages} >= {"triton", "resnet18", "gpt", "image"}
