"""What scripts/gpu-check measures of models, as far as it goes without a GPU.

Packages without weights and with them again, the comparison of results, tables of several packages, supervisors.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from bench_models import beside, compare, fenced, make, networks, prepare, serving, tune
from bench_models.cases import CASES, Case
from fixture import KERNELS, PROGRAMS, VEC_ADD
from pappus import package


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_weights_that_stayed_behind_are_written_again(dtype: torch.dtype, tmp_path: Path, check: Callable[[Path], str]) -> None:
    case = Case("dense", networks.MLP, (8, 32), dtype)
    make.make(case, tmp_path)
    made = tmp_path / "dense"
    assert not (made / "weights").exists()
    assert prepare.prepare(case, made) == "x"
    whole = package.torch(case.model(), (case.example(),), ptx=True).save(tmp_path / "whole")
    names = {file.relative_to(whole) for file in whole.rglob("*") if file.is_file()}
    added = {Path(prepare.INPUT), Path(prepare.ORDERS)}
    assert names == {file.relative_to(made) for file in made.rglob("*") if file.is_file()} - added
    assert all((whole / name).read_bytes() == (made / name).read_bytes() for name in names)
    assert "kernels.sm_90a.ptx: can run in a shared worker" in check(made)
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
    assert len(CASES) == len({case.name for case in CASES}) > 0
    for case in CASES:
        if case.name.startswith(("resnet18-8", "efficientnet")):
            continue
        first, again = case.model().state_dict(), case.model().state_dict()
        assert all(torch.equal(first[name], again[name]) for name in first)
        with torch.inference_mode():
            found = case.model().float()(case.example() if case.words else case.example().float())
        # Neither zeros nor beyond what 16 bits hold.
        assert 1e-3 < float(found.abs().max()) < 6e4


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
        (tmp_path / name / "function.json").write_text('{"blueprint": {}}')
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


def twice(folder: Path) -> Path:
    """A package of the library's, for the CPU device: its input added to itself."""
    document = json.loads(VEC_ADD.read_text())
    blueprint = document["blueprint"]
    blueprint["inputs"], blueprint["types"] = ["A"], {"A": blueprint["types"]["A"], "C": blueprint["types"]["C"]}
    ((launch,),) = [step.values() for step in blueprint["control_flow"]]
    launch[1][1] = {"Ptr": "A"}
    document["modules"] = [{"module_name": "linalg", "path": "modules/linalg.wasm"}]
    (folder / "modules").mkdir(parents=True)
    shutil.copy(KERNELS / "built/linalg.wasm", folder / "modules")
    (folder / "function.json").write_text(json.dumps(document))
    np.arange(1000, dtype=np.float32).tofile(folder / prepare.INPUT)
    return folder


def fence(folder: Path, *names: str) -> int:
    only = [f"--only={name}" for name in names]
    files = ["--out", f"{folder}/out.json", "--log", f"{folder}/supervisor.log", "--calls", "20"]
    return fenced.main([str(folder), "--device", "cpu", "--programs", str(PROGRAMS), *files, *only])


def test_models_are_called_fenced_and_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    twice(tmp_path / "twice")
    assert fence(tmp_path, "twice") == 0
    row = json.loads((tmp_path / "out.json").read_text())["twice"]
    assert {form: len(row[form]) for form in fenced.FORMS} == dict.fromkeys(fenced.FORMS, 3)
    assert row["plain_difference"] == row["fenced_difference"] == 0
    assert np.array_equal(fenced.values(tmp_path / "twice/fenced.bin", "f32"), 2 * np.arange(1000))
    assert "geometric mean of 1 models" in capsys.readouterr().out
    with serving.supervisor(PROGRAMS, "cpu:isolation=process", tmp_path / "log") as served:
        # Where nothing is shared, nothing is measured as if it were.
        fenced.add(served, tmp_path / "twice", fenced.FENCED)
        with pytest.raises(RuntimeError, match="UNSUPPORTED"):
            fenced.execution(served, tmp_path / "twice", fenced.FENCED, 1)


def test_what_cannot_be_fenced_or_is_wrong_fails_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = twice(tmp_path / "bad")
    (bad / "modules/linalg.ptx").write_text(
        ".version 8.0\n.target sm_90\n.address_size 64\n.extern .func elsewhere ();\n.visible .entry vec_add_f("
        ".param .u64 a, .param .u64 b, .param .u64 c, .param .u64 n)\n{\ncall elsewhere, ();\nret;\n}\n"
    )
    (bad / "modules/linalg.wasm").unlink()
    with serving.supervisor(PROGRAMS, "cpu:isolation=auto", tmp_path / "log") as served:
        with pytest.raises(RuntimeError, match=r"linalg\.ptx cannot run in a shared worker: vec_add_f call elsewhere: "):
            fenced.add(served, bad, fenced.FENCED)
    twice(tmp_path / "twice")
    assert fence(tmp_path, "absent", "twice") == 1
    assert "FAILED absent: packaged: " in capsys.readouterr().out
    assert len(json.loads((tmp_path / "out.json").read_text())["twice"]["fenced"]) == 3
    np.zeros(1000, np.float32).tofile(tmp_path / "twice/fenced.bin")
    assert fenced.difference(tmp_path / "twice", "fenced") == (1, 1e-5)
    assert fenced.difference(tmp_path / "twice", "plain") == (0, pytest.approx(1e-4))
    np.zeros(1000, np.float32).tofile(tmp_path / "twice/plain.bin")
    with pytest.raises(RuntimeError, match="or all zero"):
        fenced.difference(tmp_path / "twice", "fenced")


def test_what_fences_cost_is_judged_by_model_and_in_the_mean(tmp_path: Path) -> None:
    rows = {"a": [1.0, 2.0, 9.0], "b": [1.0, 1.0, 1.0]}
    found = {name: {"packaged": [1.0], "plain": [1.0], "fenced": times} for name, times in rows.items()}
    lines = fenced.table(found | {"c": {"failed": "why"}})
    assert [line.split()[-1] for line in lines if "≤" in line] == ["missed", "ok", "missed"]
    assert "2.000" in lines[1]
    assert "1.414" in lines[-1]
    assert lines[-2] == "FAILED c: why"
    half = torch.tensor([1.5, -3.0])
    for kind, dtype in {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}.items():
        prepare.array(half.to(dtype)).tofile(tmp_path / kind)
        assert fenced.values(tmp_path / kind, kind).tolist() == [1.5, -3.0]
