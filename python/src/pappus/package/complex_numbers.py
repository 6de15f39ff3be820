"""Complex numbers in a model become pairs of reals: blueprints have no complex arrays, and Inductor no kernels for them.

An exported program is rewritten before it is lowered, operator by operator: :mod:`.complex_operators` says what each does to
the parts. Where none is complex, nothing is. A complex weight becomes an array of reals with one more dimension, of 2.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Node
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from . import complex_operators, fourier, inlining, wrapper
from .complex_operators import Pair
from .errors import Unsupported
from .plan import unused_name

_aten = torch.ops.aten
_WHY = "arrays of functions are real: pass torch.view_as_real of it, and torch.view_as_complex inside of the model"
# Operators of reals that PyTorch makes of conjugates.
_NEGATES = (_aten._neg_view.default, _aten.resolve_neg.default)


def occur(program: Any) -> bool:
    """True if an operator of an exported program takes or makes complex numbers."""
    return any(_is_complex(node) for node in program.graph.nodes)


def as_pairs(program: Any, functional: Any) -> Any:
    """A program, given as it is and as a functional one, on reals; refuses complex inputs, outputs and state."""
    _keep_places(program, functional)
    _check_ends(functional)
    result = _decomposed(functional)
    _Writer(result).write()
    return result


def _is_complex(node: Node) -> bool:
    return any(isinstance(value, torch.Tensor) and value.is_complex() for value in pytree.tree_leaves(node.meta.get("val")))


def _touched(node: Node) -> bool:
    """True if complex numbers go into an operator or come out of it."""
    return node.op == "call_function" and (
        _is_complex(node) or node.target in _NEGATES or any(_is_complex(given) for given in node.all_input_nodes)
    )


def _check_ends(program: Any) -> None:
    from torch.export.graph_signature import InputKind, OutputKind

    signature = program.graph_signature
    for node, spec in zip(program.graph.find_nodes(op="placeholder"), signature.input_specs, strict=True):
        if spec.kind == InputKind.USER_INPUT and _is_complex(node):
            raise Unsupported(f"input {spec.arg.name!r}, which is complex", _WHY)
    (last,) = program.graph.find_nodes(op="output")
    given = 0
    for node, spec in zip(last.args[0], signature.output_specs, strict=True):
        if isinstance(node, Node) and _is_complex(node):
            if spec.kind == OutputKind.USER_OUTPUT:
                raise Unsupported(f"output {given} of the model, which is complex", _WHY, wrapper.place_of(node))
            raise Unsupported(f"{spec.target!r}, which is complex and changed", "state is real: keep its parts in a buffer")
        given += spec.kind == OutputKind.USER_OUTPUT


def _decomposed(program: Any) -> Any:
    """The program with those operators on complex numbers that PyTorch can write in others written so."""
    known = torch.export.default_decompositions()
    tried: set[Any] = set()
    while True:
        targets = {node.target for node in program.graph.nodes if _touched(node) and _implementation(node.target) is None}
        table = {target: known[target] for target in targets - tried if target in known}
        if not table:
            return program
        tried |= targets
        decomposed = program.run_decompositions(table)
        _keep_places(program, decomposed)
        program = decomposed


def _keep_places(before: Any, after: Any) -> None:
    """Gives operators the lines of the model that PyTorch forgot when it wrote a program anew."""
    traces = {node.name: node.meta.get("stack_trace") for node in before.graph.nodes}
    for node in after.graph.nodes:
        (*_, source) = node.meta.get("from_node") or [None]
        while source is not None and source.from_node:
            source = source.from_node[-1]
        if source is not None and traces.get(source.name):
            node.meta.setdefault("stack_trace", traces[source.name])


def _implementation(target: Any) -> Callable[..., Any] | None:
    return complex_operators.TABLE.get(target) or fourier.TABLE.get(target)


class _Writer:
    """Writes the operators on complex numbers of one program anew."""

    def __init__(self, program: Any) -> None:
        self._program = program
        self._graph = program.graph_module.graph
        values = [value for node in self._graph.nodes for value in pytree.tree_leaves(node.meta.get("val"))]
        self._mode = next(value.fake_mode for value in values if isinstance(value, FakeTensor))
        # What each operator's result became: a node, a pair of them, or a sequence of these.
        self._made: dict[Node, Any] = {}
        self._constants: dict[tuple[Any, ...], Any] = {}
        self._values: dict[int, Node] = {}

    def write(self) -> None:
        from torch.export.graph_signature import InputKind

        nodes = list(self._graph.nodes)
        specs = iter(self._program.graph_signature.input_specs[:])
        for node in nodes:
            if node.op == "placeholder":
                spec = next(specs)
                if spec.kind != InputKind.USER_INPUT and _is_complex(node):
                    self._split(node, spec.target)
            elif _touched(node):
                self._rewrite(node)
        for node in reversed(nodes):
            if node in self._made and node.op != "placeholder":
                self._graph.erase_node(node)
        self._program.graph_module.recompile()

    def _split(self, node: Node, name: str) -> None:
        """Makes a weight real."""
        kept = self._program._state_dict if name in self._program._state_dict else self._program._constants
        pair = torch.view_as_real(kept[name].detach().resolve_conj()).clone()
        is_parameter = isinstance(kept[name], torch.nn.Parameter)
        kept[name] = torch.nn.Parameter(pair, requires_grad=False) if is_parameter else pair
        node.meta["val"] = self._mode.from_tensor(pair, static_shapes=True)
        first = next(each for each in self._graph.nodes if each.op != "placeholder")
        with self._graph.inserting_before(first):
            self._made[node] = self._inlined(lambda x: Pair(*x.unbind(-1)), [node], node)

    def _rewrite(self, node: Node) -> None:
        implementation = _implementation(node.target)
        if implementation is None:
            raise Unsupported(f"{node.target} of complex numbers", complex_operators.WHY, wrapper.place_of(node))
        if node.target in fourier.TABLE:
            implementation = functools.partial(implementation, self._constant)
        given = map_arg((node.args, dict(node.kwargs)), lambda each: self._made.get(each, each))
        leaves, spec = pytree.tree_flatten(given)
        nodes = list(dict.fromkeys(leaf for leaf in leaves if isinstance(leaf, Node)))

        def run(*values: Any) -> Any:
            known = dict(zip(nodes, values, strict=True))
            args, kwargs = pytree.tree_unflatten([known[x] if isinstance(x, Node) else x for x in leaves], spec)
            return complex_operators.typed(implementation(*args, **kwargs), node.meta.get("val"))

        with self._graph.inserting_before(node):
            result = self._inlined(run, nodes, node)
        self._made[node] = result
        if isinstance(result, Node):
            node.replace_all_uses_with(result)

    def _inlined(self, run: Callable[..., Any], nodes: list[Node], origin: Node) -> Any:
        """What a function does to values of nodes, as nodes with the place of the one that they are written for."""
        try:
            with self._mode:
                return inlining.inlined(self._graph, run, nodes, origin, constant=lambda value: self._values[id(value)])
        except Unsupported as refused:
            raise Unsupported(refused.what, refused.why, wrapper.place_of(origin)) from refused
        except Exception as error:
            why = f"{complex_operators.WHY} ({error})"
            raise Unsupported(f"{origin.target} of complex numbers", why, wrapper.place_of(origin)) from error

    def _constant(self, key: tuple[Any, ...], make: Callable[[], torch.Tensor]) -> Any:
        """A tensor that becomes a weight of the program, once for each key, whose first part it is called by."""
        if key not in self._constants:
            from torch.export.graph_signature import InputKind, InputSpec, TensorArgument

            program, specs = self._program, self._program.graph_signature.input_specs
            name = unused_name(str(key[0]), {*program._state_dict, *program._constants})
            with _disable_current_modes():
                program._constants[name] = make()
            at = next(at for at, spec in enumerate(specs) if spec.kind == InputKind.USER_INPUT)
            with self._graph.inserting_before(self._graph.find_nodes(op="placeholder")[at]):
                node = self._graph.placeholder(f"c_{name}")
            node.meta["val"] = value = self._mode.from_tensor(program._constants[name], static_shapes=True)
            specs.insert(at, InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(node.name), name))
            self._constants[key], self._values[id(value)] = value, node
        return self._constants[key]
