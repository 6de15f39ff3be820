"""Models as steps of a composition: they link, and step after step computes what eager PyTorch does."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bench_models import networks
from fixture import program
from pappus import package
from pappus.package import Composition, Package, memory


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def linked(made: Composition, functions: dict[str, Package], folder: Path) -> dict[str, Any]:
    """What ``pappus function check`` says of it, linked with the packages beside it."""
    for name, built in functions.items():
        built.save(folder / f"{name}.pappus")
    command = [program("pappus"), "function", "check", "--json", made.save(folder / "composed.json")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    assert said["valid"]
    assert said["warnings"] == []
    return said


def computed(made: Composition, functions: dict[str, Package], **inputs: Any) -> dict[str, Any]:
    """The outputs, as the document says where bytes go, each step by the interpreter."""
    found: dict[str, dict[str, Any]] = {}

    def of(source: Any) -> Any:
        if isinstance(source, str):
            return inputs[source]
        outputs = found[source["step"]]
        return outputs[source["output"]] if "output" in source else next(iter(outputs.values()))

    for step in made.document["steps"]:
        given = {name: of(source) for name, source in step["inputs"].items()}
        found[step["name"]] = functions[step["function"]].interpret(**given)
    return {name: of(source) for name, source in made.document["outputs"].items()}


class Wave(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x) * 0.9 + 0.1


class Fade(nn.Module):
    def forward(self, x: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
        return x * 0.75 + first.tanh() * 0.25


def test_thirty_elementwise_steps(tmp_path: Path) -> None:
    rows = torch.export.Dim("rows", min=2, max=512)
    x = torch.randn(16, 50)
    free = {"x": {0: rows}}
    functions = {
        "wave": package.torch(Wave().eval(), (x,), dynamic_shapes=free),
        "fade": package.torch(Fade().eval(), (x, x), dynamic_shapes=free | {"first": {0: rows}}),
    }
    made = package.compose()
    first = made.input("x")
    last: Any = first
    for at in range(30):
        inputs = {"x": last} if at % 3 else {"x": last, "first": first}
        last = made.step(f"s{at}", "wave" if at % 3 else "fade", inputs)
    made.output("y", last)
    said = linked(made, functions, tmp_path)
    assert said["launches"] == 30
    # Each function's module is there once, however many steps have it.
    assert len(said["modules"]) == 2
    wanted = x
    for at in range(30):
        wanted = Wave()(wanted) if at % 3 else Fade()(wanted, x)
    found = torch.as_tensor(computed(made, functions, x=x)["y"])
    assert float((found - wanted).abs().max()) <= 1e-5


class Shrink(nn.Module):
    """Pixels as cameras have them → what the network was trained with."""

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        shares = pixels.permute(0, 3, 1, 2).float() / 255
        small = F.interpolate(shares, size=(32, 32), mode="bilinear", antialias=True)
        mean, deviation = (torch.tensor(each)[:, None, None] for each in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
        return (small - mean) / deviation


class Best(nn.Module):
    def forward(self, scores: torch.Tensor) -> dict[str, torch.Tensor]:
        shares, classes = scores.softmax(-1).topk(3)
        return {"shares": shares, "classes": classes}


def test_resnet18_between_resizing_and_the_best_classes(tmp_path: Path) -> None:
    shrink, resnet, best = Shrink().eval(), networks.randomized(networks.ResNet18(width=8, classes=10)), Best().eval()
    pixels = torch.randint(0, 256, (1, 48, 40, 3), dtype=torch.uint8)
    with torch.no_grad():
        small = shrink(pixels)
        scores = resnet(small)
        wanted = best(scores)
    functions = {
        "shrink": package.torch(shrink, (pixels,)),
        "resnet18": package.torch(resnet, (small,)),
        "best": package.torch(best, (scores,)),
    }
    made = package.compose()
    ready = made.step("shrink", "shrink", {"pixels": made.input("pixels")})
    (input_name,) = functions["resnet18"].blueprint["inputs"]
    scored = made.step("classify", "resnet18", {input_name: ready})
    found = made.step("best", "best", {"scores": scored})
    made.output("shares", found["shares"])
    made.output("classes", found["classes"])
    made.output("scores", scored)
    said = linked(made, functions, tmp_path)
    launches = sum("ExecKernel" in step for function in functions.values() for step in function.blueprint["control_flow"])
    assert said["launches"] == launches
    weights = sum(
        memory.round_up(weight.array.nbytes) for function in functions.values() for weight in function.weights.values()
    )
    assert said["weight_bytes"] == weights
    given = computed(made, functions, pixels=pixels)
    assert given["classes"].tolist() == wanted["classes"].tolist()
    for name, value in {"shares": wanted["shares"], "scores": scores}.items():
        assert float((torch.as_tensor(given[name]) - value).abs().max()) <= 1e-4 * max(1.0, float(value.abs().max()))
