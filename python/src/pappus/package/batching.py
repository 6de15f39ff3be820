"""Whether calls of a model may run side by side, as one longer call.

They may where each item of its outputs depends on the same item of its inputs alone. Shapes say whether a dimension can be
such a batch. Whether the model mixes its items is tried on the processor: items that are moved to another place, beside
others and not as many, must give what they gave. That is a trial, no proof: a model that mixes items for few inputs alone
passes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from . import quantized, sizes
from .dimensions import Dimensions
from .plan import ArrayType, Plan
from .sizes import Size

# Items that the format lets run together (docs/blueprint.md).
MOST = 65_536
# Of a trial: the items, and how far from each other their results may be, by the largest one: fewer items are added up
# in another order.
_ITEMS = 3
_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 5e-2}


def of(
    plan: Plan,
    free: Dimensions,
    model: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    say: Callable[[str], None],
) -> tuple[str, int] | None:
    """The name of a model's batch and how many items it may have, if there is one; ``say`` is told why a dimension is none."""
    found = dimension(plan, free)
    if found is None:
        return None
    name, least, most = found
    if isinstance(model, torch.export.ExportedProgram):
        args, kwargs = model.example_inputs or ((), {})
        model = model.module()
    say(f"running the model on the processor, to see whether the items of {name} stay apart")
    why = keeps_items_apart(model, args, kwargs, least, most)
    if why is not None:
        say(f"calls do not run side by side along {name}: {why}")
        return None
    return name, most


def dimension(plan: Plan, free: Dimensions) -> tuple[str, int, int] | None:
    """The name of a free dimension that is the first of every input and output, and its least and largest number.

    None where there is no such dimension, where another one of theirs depends on it, or calls on each other anyway.
    """
    if plan.state:
        return None
    shapes = [(plan.types.get(name) or ArrayType("u8")).shape or () for name in [*plan.inputs, *plan.outputs]]
    for symbol, bounds in free.bounds.items():
        size = sizes.free(free.name(symbol))
        along = all(shape and shape[0] == size and not any(_mentions(dim, size) for dim in shape[1:]) for shape in shapes)
        least, most = max(bounds[0] or 1, 1), min(bounds[1] or MOST, MOST)
        if along and most > 1:
            return free.name(symbol), least, most
    return None


def _mentions(dim: Any, size: Size) -> bool:
    inner = dim.values() if isinstance(dim, Mapping) else dim if isinstance(dim, list) else ()
    return dim == size or any(_mentions(part, size) for part in inner)


def keeps_items_apart(
    model: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], least: int, most: int
) -> str | None:
    """Tries it. Why calls may not run side by side, or nothing where they may."""
    if least == most:
        return f"there are always {most} items, which shows nothing"
    items = min(max(_ITEMS, least), most - 1)
    generator = torch.Generator().manual_seed(0)
    leaves, tree = torch.utils._pytree.tree_flatten((tuple(args), dict(kwargs)))

    def drawn(leaf: Any, count: int) -> Any:
        return _items(leaf, count, generator) if isinstance(leaf, torch.Tensor) else leaf

    first = [drawn(leaf, items) for leaf in leaves]
    # The same items one place further, behind another one.
    others = [drawn(leaf, 1) for leaf in leaves]
    pairs = zip(first, others, strict=True)
    moved = [torch.cat([other, leaf]) if isinstance(leaf, torch.Tensor) else leaf for leaf, other in pairs]
    if all(torch.equal(leaf[:-1], leaf[1:]) for leaf in moved if isinstance(leaf, torch.Tensor)):
        return "the example inputs are the same number everywhere, which shows nothing"
    try:
        with torch.no_grad(), quantized.portable():
            before, after = (_outputs(model, torch.utils._pytree.tree_unflatten(given, tree)) for given in (first, moved))
    except Exception as error:
        return f"the model does not run on the processor with {items} items ({error})"
    for one, other in zip(before, after, strict=True):
        if not _same(one, other[1:]):
            return "an item of an output depends on other items of the inputs, or on how many there are"
    return None


def _items(example: torch.Tensor, count: int, generator: torch.Generator) -> torch.Tensor:
    """Items like those of an example: numbers that it has, or random ones."""
    shape = (count, *example.shape[1:])
    if example.is_floating_point() or example.is_complex():
        return torch.randn(shape, generator=generator).to(example.dtype)
    chosen = torch.randint(0, max(example.numel(), 1), shape, generator=generator)
    return example.detach().cpu().flatten()[chosen]


def _outputs(model: Callable[..., Any], given: Any) -> list[torch.Tensor]:
    args, kwargs = given
    leaves, _ = torch.utils._pytree.tree_flatten(model(*args, **kwargs))
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    tolerance = _TOLERANCE.get(one.dtype)
    if tolerance is None:
        return bool(torch.equal(one, other))
    most = float(one.abs().nan_to_num(0, 0, 0).max()) if one.numel() else 0.0
    return bool(torch.allclose(one.double(), other.double(), rtol=0, atol=tolerance * most, equal_nan=True))
