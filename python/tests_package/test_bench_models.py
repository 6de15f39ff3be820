"""What scripts/gpu-check measures of models, as far as it goes without a GPU.

Packages without weights and with them again, the comparison of results, tables of several packages, supervisors.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from bench_models import beside, compare, make, networks, prepare, serving, tune
from bench_models.cases import CASES, Case
from conftest import PROGRAMS
from pappus import package


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_weights_that_stayed_behind_are_written_again(dtype: torch.dtype, tmp_path: Path, check: Callable[[Path], str]) -> None:
    case = Case("dense", networks.MLP, (8, 32), dtype)
    make.make(case, tmp_path, "sm_90", 0, None, None)
    made = tmp_path / "dense"
    assert not (made / "weights").exists()
    assert prepare.prepare(case, made) == "x"
    whole = package.torch(case.model(), (case.example(),)).save(tmp_path / "whole")
    names = {file.relative_to(whole) for file in whole.rglob("*") if file.is_file()}
    assert names == {file.relative_to(made) for file in made.rglob("*") if file.is_file()} - {Path(prepare.INPUT)}
    assert all((whole / name).read_bytes() == (made / name).read_bytes() for name in names)
    check(made)
    assert torch.equal(beside.left(made / prepare.INPUT, case.example()), case.example())


def test_a_weight_that_nobody_has_is_told(tmp_path: Path) -> None:
    document = {"weight_files": {"constant": "weights/constant.npy"}, "blueprint": {"inputs": ["x"]}}
    (tmp_path / "function.json").write_text(json.dumps(document))
    with pytest.raises(SystemExit, match="constant is no weight of the model"):
        prepare.prepare(Case("dense", networks.MLP, (8, 32)), tmp_path)


def test_every_model_has_weights_that_are_always_the_same_and_results_that_say_something() -> None:
    assert len(CASES) == len({case.name for case in CASES}) == 8
    for case in CASES:
        if case.name.startswith("resnet18-8"):
            continue
        first, again = case.model().state_dict(), case.model().state_dict()
        assert all(torch.equal(first[name], again[name]) for name in first)
        with torch.inference_mode():
            found = case.model().float()(case.example() if case.words else case.example().float())
        # Neither zeros nor beyond what 16 bits hold.
        assert 1e-3 < float(found.abs().max()) < 1e3


def test_differences_are_relative_to_what_is_right(tmp_path: Path) -> None:
    wanted = torch.tensor([[4.0, -2.0]])
    assert beside.largest(torch.tensor([[4.0, -2.2]]), wanted) == pytest.approx(0.05)
    assert beside.mean(torch.tensor([[4.3, -2.4]]), wanted) == pytest.approx((0.25 / 20) ** 0.5)
    file = tmp_path / "output.bin"
    file.write_bytes(wanted.to(torch.float16).numpy().tobytes())
    assert torch.equal(beside.left(file, wanted.half()), wanted.half())
    with pytest.raises(SystemExit, match="has 4 bytes, PyTorch's output has 8"):
        beside.left(file, wanted)


def test_a_process_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(make.__file__).parents[1]))
    assert "invalid named value" in compare.beside("no-such-model", tmp_path, False, 60)["failed"]


def test_tables_of_several_packages_are_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = {"A GPU": {"mm": {"choice": "a"}}}, {"A GPU": {"conv": {"choice": "b"}}, "B": {}}
    assert tune.joined([one, other]) == {"A GPU": {"mm": {"choice": "a"}, "conv": {"choice": "b"}}, "B": {}}
    assert tune.main([str(tmp_path)]) == 3
    assert "nothing to tune" in capsys.readouterr().err


def test_a_supervisor_serves_and_what_it_refuses_is_told(tmp_path: Path) -> None:
    with serving.supervisor(PROGRAMS, "cpu:workers=1,memory=64MiB", tmp_path / "log") as served:
        assert [device["name"] for device in served.run("status")["devices"]] == ["cpu"]
        with pytest.raises(RuntimeError, match="pappus invoke absent"):
            served.run("invoke", "absent")
    with pytest.raises(RuntimeError, match="did not start; its log:"):
        with serving.supervisor(PROGRAMS, "cpu:nonsense=1", tmp_path / "log"):
            pass
