"""Buffers that a model changes are state: over successive calls of a session, its outputs are those of eager PyTorch."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from pappus import package
from pappus.package import Package, PackageError, Unsupported

Check = Callable[[Path], str]
CALLS = 5


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def worst(built: Package, model: nn.Module, calls: list[tuple[torch.Tensor, ...]], *, kept: bool = True) -> float:
    """The largest difference to the eager model, which changes its own buffers; without ``kept`` each call has a session."""
    eager, session, found = copy.deepcopy(model), built.session(), 0.0
    for inputs in calls:
        session = session if kept else built.session()
        answer = session(**dict(zip(built.blueprint["inputs"], inputs, strict=True)))
        with torch.no_grad():
            wanted = eager(*inputs)
        if not isinstance(wanted, dict):
            wanted = dict(zip(built.blueprint["outputs"], [wanted], strict=True))
        assert set(answer) == set(wanted)
        for name, value in wanted.items():
            given = torch.as_tensor(answer[name])
            assert (given.shape, given.dtype) == (value.shape, value.dtype)
            found = max(found, float((given.double() - value.double()).abs().max()))
    return found


class Cache(nn.Module):
    """What attention over a static cache does: a place is written, all of it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(4, 8))
        self.register_buffer("values", torch.zeros(4, 8), persistent=False)
        self.register_buffer("place", torch.zeros(1, dtype=torch.int64))

    def at(self) -> torch.Tensor:
        place = self.place.clone()
        self.place.add_(1)
        return place


class Assigns(Cache):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.keys[:, self.at()] = x[:, None]
        return self.keys @ self.keys.T


class Places(Cache):
    def forward(self, x: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        self.keys[:, place] = x[:, None]
        self.values.index_copy_(1, place, 2 * x[:, None])
        seen = torch.arange(8, device=x.device) <= place
        return (x @ self.keys).masked_fill(~seen, float("-inf")).softmax(-1) @ self.values.T


class Copies(Cache):
    """What was there before a change is an output, and what is there after it."""

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        old, view = self.keys.clone(), self.keys[1]
        self.keys.copy_(self.keys * 0.5 + x[:, None])
        return {"old": old, "new": self.keys, "row": view, "both": old * self.keys, "sum": old.sum() + self.keys[2]}


class ReadsAfterwards(Cache):
    """A sum of what was there is used behind writes to some of it, and once more after a second write."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before = self.keys.sum(0)
        self.keys[:, self.at()] = x[:, None]
        between = self.keys.cumsum(1)
        self.keys.mul_(0.5)
        return between + before + self.keys.flip(0)


class Shifts(Cache):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.keys[1:] = self.keys[:-1].clone()
        self.keys[0] = x.sum()
        return self.keys.T @ x


class Replaces(Cache):
    """A buffer that is assigned, not written to."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        old = self.keys
        self.keys = old.roll(1, 1) + x[:, None]
        return torch.cat([old, self.keys])


class Swaps(Cache):
    """Each becomes what the other one was."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        keys, values = self.keys.clone(), self.values.clone()
        self.keys.copy_(values + x[:, None])
        self.values.copy_(keys)
        return self.keys - 3 * self.values


class Columns(Cache):
    """State whose elements do not lie in their order, and have gaps between them."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("turned", torch.zeros(8, 4).T)
        self.register_buffer("apart", torch.zeros(4, 16)[:, ::2])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        place = self.at()
        self.turned[:, place] += x[:, None]
        self.apart[:, place] = self.turned[:, place] + 1
        return self.turned @ self.apart.T


class Gates(nn.Module):
    """A recurrent network with whole numbers, truth values and floats of 16 bits beside its hidden values."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(4, 8)
        self.register_buffer("hidden", torch.zeros(1, 8))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int32))
        self.register_buffer("seen", torch.zeros(4, dtype=torch.bool))
        self.register_buffer("often", torch.zeros(4, dtype=torch.bfloat16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.hidden.copy_(self.cell(x[None], self.hidden))
        self.steps += 1
        self.seen |= x > 0
        self.often += (x > 0).to(torch.bfloat16)
        return self.hidden.sum() / self.steps + self.seen.float() + self.often.float()


MODELS = [Assigns, Places, Copies, ReadsAfterwards, Shifts, Replaces, Swaps, Columns, Gates]


def calls_of(model: type[nn.Module]) -> list[tuple[torch.Tensor, ...]]:
    return [(torch.randn(4), torch.tensor([at])) if model is Places else (torch.randn(4),) for at in range(CALLS)]


@pytest.mark.parametrize("kind", MODELS)
def test_five_calls_are_those_of_the_model_that_changes_its_buffers(kind: type[nn.Module]) -> None:
    model, calls = kind().eval(), calls_of(kind)
    built = package.torch(model, calls[0])
    # Packaging has changed nothing.
    assert not any(buffer.any() for buffer in model.buffers())
    assert worst(built, model, calls) <= 1e-5
    # The comparison would see it if the state were not kept.
    assert worst(built, model, calls, kept=False) > 1e-2


def state_of(built: Package) -> dict[str, int]:
    return {name: size["Absolute"] for name, size in built.blueprint.get("state", {}).items()}


def test_state_is_declared_and_written_in_place(tmp_path: Path, check: Check) -> None:
    built = package.torch(Places().eval(), calls_of(Places)[0], targets=["sm_80", "sm_90"])
    assert state_of(built) == {"keys": 128, "values": 128}
    assert built.blueprint["types"]["keys"] == {"dtype": "f32", "shape": [{"Absolute": 4}, {"Absolute": 8}]}
    assert not {"keys", "values"} & {*built.blueprint["weights"], *built.blueprint["buffers"], *built.blueprint["outputs"]}
    said = check(built.save(tmp_path / "places.pappus"))
    assert "a valid function" in said
    assert "state" in said
    # No copy of a whole cache, neither as a step nor as a temporary buffer.
    assert all("ExecKernel" in step for step in built.blueprint["control_flow"])
    assert sum(json.dumps(built.blueprint["control_flow"]).count(f'"Ptr": "{name}"') for name in ("keys", "values")) == 4


class Several(Cache):
    """Any number of tokens at once: a prompt, and then one after the other."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = self.place + torch.arange(x.shape[0], device=x.device)
        self.keys.index_copy_(1, places, x.T)
        self.values[:, places] = x.T * 2
        self.place += x.shape[0]
        scores = (x @ self.keys).masked_fill(torch.arange(8, device=x.device) > places[:, None], float("-inf"))
        return scores.softmax(-1) @ self.values.T


def test_a_prompt_of_any_length_and_single_tokens() -> None:
    model = Several().eval()
    built = package.torch(model, (torch.randn(3, 4),), dynamic_shapes={"x": {0: torch.export.Dim("tokens", min=1, max=8)}})
    calls = [(torch.randn(count, 4),) for count in (3, 1, 2, 1, 1)]
    assert worst(built, model, calls) <= 1e-5
    assert worst(built, model, calls, kept=False) > 1e-2


def test_a_function_without_state_declares_none() -> None:
    assert "state" not in package.torch(nn.Linear(8, 8).eval(), (torch.randn(4, 8),)).blueprint


def test_a_call_that_fails_leaves_the_state() -> None:
    model = Assigns().eval()
    built = package.torch(model, (torch.randn(4),))
    one, other, x = built.session(), built.session(), torch.ones(4)
    first = one(x=x)["output"]
    with pytest.raises(PackageError, match="inputs are"):
        one(y=x)
    with pytest.raises(PackageError, match=r"has state: .*session\(\)"):
        built.interpret(x=x)
    assert (one(x=x)["output"] == 2 * first).all()
    assert (other(x=x)["output"] == first).all()


class Reads(Cache):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.keys @ x if len(x) == 8 else self.keys.T @ x


def test_functions_of_one_session_can_have_the_same_state() -> None:
    writes = package.torch(Assigns().eval(), (torch.randn(4),), state=["values"])
    reads = package.torch(Reads().eval(), (torch.randn(8),), state=["place", "keys", "values"])
    assert state_of(writes) == state_of(reads) == {"keys": 128, "place": 8, "values": 128}
    assert list(state_of(writes)) == list(state_of(reads))
    assert writes.blueprint["weights"] == reads.blueprint["weights"] == []
    with pytest.raises(PackageError, match=r"state names 'key', which is no buffer of the model: it has \['keys', 'place'"):
        package.torch(Reads().eval(), (torch.randn(8),), state=["key"])


@pytest.mark.parametrize("decomposed", [False, True])
@pytest.mark.parametrize("kind", [Places, Copies, Replaces])
def test_an_exported_program_has_the_same_state(kind: type[nn.Module], decomposed: bool) -> None:
    model, calls = kind().eval(), calls_of(kind)
    with torch.no_grad():
        program = torch.export.export(model, calls[0])
        program = program.run_decompositions({}) if decomposed else program
    built = package.torch(program)
    assert worst(built, model, calls) <= 1e-5
    assert built.blueprint["outputs"] == package.torch(model, calls[0]).blueprint["outputs"]


@pytest.mark.parametrize("value", [1.0, -0.0, float("nan")])
def test_a_buffer_that_does_not_start_with_zeroes_is_refused(value: float) -> None:
    model = Copies().eval()
    model.keys[3, 7] = value
    with pytest.raises(PackageError, match=r"buffer 'keys' is state, which is zero .*model\.get_buffer\('keys'\)\.zero_\(\)"):
        package.torch(model, (torch.randn(4),))
    # As the message says.
    model.get_buffer("keys").zero_()
    package.torch(model, (torch.randn(4),))


class Shares(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("whole", torch.zeros(8))
        self.register_buffer("part", self.whole[2:])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.whole.add_(x)
        return self.part * 2


class Scalar(Cache):
    def forward(self, x: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        self.keys[:, place] = x
        return self.keys.sum(0)


class Attribute(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.sum = torch.zeros(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.sum.add_(x)
        return self.sum * 2


def test_what_cannot_be_state_is_refused() -> None:
    with pytest.raises(PackageError, match="'whole' and 'part' share memory"):
        package.torch(Shares().eval(), (torch.randn(8),))
    with pytest.raises(Unsupported, match=r"a size or place that is computed from data.*an index of shape \(1,\)"):
        package.torch(Scalar().eval(), (torch.randn(4), torch.tensor(3)))
    with pytest.raises(PackageError, match=r"Constant sum is mutated in the forward method\. Pls register it as buffer"):
        package.torch(Attribute().eval(), (torch.randn(4),))
