"""What scripts/gpu-check measures of models, as far as it goes without a GPU.

Packages without weights and with them again, the comparison of results, tables of several packages, supervisors.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from bench_models import beside, compare, make, networks, prepare, serving, tune
from bench_models.cases import CASES, Case
from fixture import PROGRAMS
from pappus import package


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_weights_that_stayed_behind_are_written_again(dtype: torch.dtype, tmp_path: Path, check: Callable[[Path], str]) -> None:
    case = Case("dense", networks.MLP, (8, 32), dtype)
    make.make(case, tmp_path)
    made = tmp_path / "dense"
    assert not (made / "weights").exists()
    assert prepare.prepare(case, made) == "x"
    whole = package.torch(case.model(), (case.example(),)).save(tmp_path / "whole")
    names = {file.relative_to(whole) for file in whole.rglob("*") if file.is_file()}
    added = {Path(prepare.INPUT), Path(prepare.ORDERS)}
    assert names == {file.relative_to(made) for file in made.rglob("*") if file.is_file()} - added
    assert all((whole / name).read_bytes() == (made / name).read_bytes() for name in names)
    check(made)
    assert torch.equal(beside.left(made / prepare.INPUT, case.example()), case.example())


def test_so_are_those_that_packages_have_in_another_order(tmp_path: Path) -> None:
    case = Case("convolutional", networks.CNN, (1, 3, 8, 8))
    make.make(case, tmp_path)
    prepare.prepare(case, tmp_path / "convolutional")
    whole = package.torch(case.model(), (case.example(),))
    assert "second.weight" in whole.plan.orders
    for weight in whole.weights.values():
        assert (tmp_path / "convolutional" / weight.path).read_bytes() == weight.content()


def test_a_weight_that_nobody_has_is_told(tmp_path: Path) -> None:
    (tmp_path / prepare.ORDERS).write_text("{}")
    document = {"weight_files": {"constant": "weights/constant.npy"}, "blueprint": {"inputs": ["x"]}}
    (tmp_path / "function.json").write_text(json.dumps(document))
    with pytest.raises(SystemExit, match="constant is no weight of the model"):
        prepare.prepare(Case("dense", networks.MLP, (8, 32)), tmp_path)


def test_every_model_has_weights_that_are_always_the_same_and_results_that_say_something() -> None:
    assert len(CASES) == len({case.name for case in CASES}) == 12
    for case in CASES:
        if case.name.startswith(("resnet18-8", "efficientnet")):
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
    assert "invalid named value" in compare.beside("no-such-model", tmp_path, limit=60)["failed"]


def test_a_run_that_is_ended_early_has_what_matters_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["attention-fp16", "gpt-fp32", "resnet18-8-fp32", "resnet18-1-fp32"]
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / prepare.INPUT).touch()
    steps: list[str] = []
    out = tmp_path / "out.json"

    def called(_: object, made: Path, __: int) -> dict[str, float]:
        steps.append(made.name)
        return {"pappus_ns": 1}

    def measured(case: str, _: Path, *flags: str, limit: float) -> dict[str, object]:
        steps.append(" ".join([case, *flags]))
        # Everything before is in the file already.
        assert all("pappus_ns" in row for row in json.loads(out.read_text()).values())
        return {"failed": f"longer than {limit:.0f} s"} if flags else {"eager_ns": 2}

    monkeypatch.setattr(compare, "called", called)
    monkeypatch.setattr(compare, "beside", measured)
    monkeypatch.setattr(compare.serving, "supervisor", lambda *_: contextlib.nullcontext())
    arguments = ["--out", str(out), "--compile", "gpt-fp32", "--compile", "resnet18-1-fp32", "--compile-limit", "7"]
    assert compare.main([str(tmp_path), *arguments]) == 0
    ordered = ["resnet18-1-fp32", "resnet18-8-fp32", "gpt-fp32", "attention-fp16"]
    assert steps == ordered * 2 + ["resnet18-1-fp32 --compile", "gpt-fp32 --compile"]
    found = json.loads(out.read_text())
    assert found["gpt-fp32"] == {"pappus_ns": 1, "eager_ns": 2, "compile_failed": "longer than 7 s"}


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
