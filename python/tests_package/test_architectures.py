"""The list of public architectures: what it has, its weights, and what is said of results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from architectures import check, one
from architectures.architecture import settled, shaken
from architectures.zoo import ARCHITECTURES, named

MADE = {
    "name": "torch/nerf",
    "dtype": "float32",
    "cold": 5.2,
    "again": 4.8,
    "kernels": 5,
    "steps": 6,
    "error": 2e-7,
    "change": 0.1,
}
REFUSED = {"name": "torch/gru", "dtype": "float16", "refused": "aten.x (at /a/site-packages/a|b): why"}


def test_sixty_or_more_with_a_name_each() -> None:
    assert len({each.name for each in ARCHITECTURES}) == len(ARCHITECTURES) >= 60
    assert len({each.name.partition("/")[0] for each in ARCHITECTURES}) == 7
    with pytest.raises(ValueError, match="there is no architecture 'torch/none', but "):
        named("torch/none")


def test_weights_and_inputs_are_always_the_same() -> None:
    first, again = (one.eager(named("torch/pointnet")) for _ in range(2))
    other = one.eager(named("torch/pointnet"), seed=2)
    assert one.error(first[0], again[0]) == 0
    assert one.error(other[0], first[0]) > 1e-3


def test_constants_are_drawn_and_norms_know_what_they_are_given() -> None:
    torch.manual_seed(0)
    norm = torch.nn.BatchNorm1d(64)
    model = shaken(torch.nn.Sequential(torch.nn.Linear(8, 64), norm).eval())
    assert norm.weight.std() > 0.1
    assert norm.bias.std() > 0.01
    settled(model, (torch.randn(16, 8) * 100,), {})
    assert norm.running_var is not None
    assert norm.running_var.mean() > 100
    assert not norm._forward_pre_hooks


def test_errors_are_relative_to_the_largest_value() -> None:
    wanted = torch.tensor([1.0, -10.0])
    assert one.error(torch.tensor([1.0, -10.1]), wanted) == pytest.approx(0.01, rel=1e-4)
    assert one.error(torch.tensor([1.0, float("nan")]), wanted) == float("inf")
    assert one.error(torch.tensor([1, 2]), torch.tensor([1, 3])) == float("inf")
    assert one.error(torch.zeros(3), wanted) == float("inf")


def test_what_is_said_of_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert check.line(MADE) == "| torch/nerf | 5 | 5 | 5 | 6 | 2.0e-07 |  |"
    assert check.line(REFUSED) == "| torch/gru (float16) |  |  |  |  |  | aten.x (at a\\|b): why |"
    assert check.faults(MADE | {"error": 1e-4, "change": 1e-6}) == [
        "the error is above 1e-05",
        "other inputs change results by 1e-06 alone",
    ]
    assert check.faults(MADE | {"cold": 61, "again": 11}) == [
        "packaging takes longer than 60 s",
        "packaging again takes longer than 10 s",
    ]
    # What is there of others stays.
    out, page = tmp_path / "found.json", tmp_path / "page.md"
    out.write_text(json.dumps([REFUSED]))
    monkeypatch.setattr(check, "check", lambda *_: MADE)
    assert check.main(["torch/nerf", "--out", str(out), "--page", str(page)]) == 0
    assert json.loads(out.read_text()) == [REFUSED, MADE]
    assert "1 of 2 are packaged." in page.read_text()
    assert "1 of 2 are packaged." in capsys.readouterr().out
