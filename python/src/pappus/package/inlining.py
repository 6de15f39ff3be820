"""What a function of tensors does, written into an exported program's graph in the place of a node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree


def inlined(
    graph: torch.fx.Graph,
    run: Callable[..., Any],
    nodes: Sequence[Node],
    origin: Node,
    *,
    constant: Callable[[torch.Tensor], Node] | None = None,
) -> Any:
    """Writes what ``run`` does to the values of ``nodes``; returns its result as nodes, with the place of ``origin``.

    Tensors that ``run`` brings are what ``constant`` makes of them. The graph's fake mode is active, and its place to
    write at is set.
    """
    shape: Any = None

    def flat(*values: Any) -> Any:
        nonlocal shape
        leaves, shape = pytree.tree_flatten(run(*values))
        return leaves

    traced = make_fx(flat)(*(node.meta["val"] for node in nodes))
    became: dict[Node, Any] = dict(zip(traced.graph.find_nodes(op="placeholder"), nodes, strict=True))
    for node in traced.graph.find_nodes(op="get_attr"):
        assert constant is not None
        became[node] = constant(getattr(traced, node.target))
    known = set(became)
    found: Any = graph.graph_copy(traced.graph, became)
    for old, new in became.items():
        if old not in known:
            new.meta |= {key: origin.meta[key] for key in ("stack_trace", "nn_module_stack") if key in origin.meta}
    return pytree.tree_unflatten(found, shape)


def replace(graph: torch.fx.Graph, node: Node, run: Callable[..., Any]) -> None:
    """Has ``run`` in the place of a node's operator: it takes what that takes, and returns a tensor or a tuple of them."""
    leaves, spec = pytree.tree_flatten((node.args, node.kwargs))
    nodes = list(dict.fromkeys(leaf for leaf in leaves if isinstance(leaf, Node)))

    def given(*values: Any) -> Any:
        known: Mapping[Any, Any] = dict(zip(nodes, values, strict=True))
        args, kwargs = pytree.tree_unflatten([known.get(leaf, leaf) for leaf in leaves], spec)
        return run(*args, **kwargs)

    value = node.meta["val"]
    fake = value[0] if isinstance(value, list | tuple) else value
    assert isinstance(fake, FakeTensor)
    with fake.fake_mode, graph.inserting_before(node):
        found = inlined(graph, given, nodes, node)
    if isinstance(found, Node):
        node.replace_all_uses_with(found)
    for user in list(node.users):
        # Each of several results is taken by its place.
        user.replace_all_uses_with(found[user.args[1]])
        graph.erase_node(user)
    graph.erase_node(node)
