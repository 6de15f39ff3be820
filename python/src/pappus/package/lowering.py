"""A PyTorch model → a plan: ``torch.export``, then Inductor with Triton templates only, whose wrapper lines become steps.

Nothing here needs a GPU: the model runs nowhere, Inductor is told about one (:mod:`.pretend`), and stops where it would
make a program (:mod:`.wrapper`).
"""

from __future__ import annotations

import contextlib
import copy
import gc
import re
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from . import (
    complex_numbers,
    convolutions,
    decompositions,
    deferred,
    dimensions,
    fusing,
    points,
    precision,
    pretend,
    quantized,
    recurrent,
    sampling,
    single_rows,
    wrapper,
)
from .candidates import Choices
from .errors import PackageError, Unsupported
from .plan import Plan
from .points import Table
from .targets import Target

# Releases of PyTorch that this was tried with (scripts/ecosystem): it uses private parts of Inductor.
SUPPORTED = ("2.15", "2.14")

_NO_CACHE = (
    "inputs and outputs of functions are tensors: call the model with use_cache=False (kwargs={'use_cache': False}, or "
    "model.config.use_cache = False), or have it keep the cache in registered buffers, which become state"
)
_NO_DATA = "the steps of a function do not depend on data"
# Operators that take parts of the model as arguments, and decide by data which of them run or how often.
_CONTROL_FLOW = {
    "cond": "torch.cond",
    "switch": "torch.switch",
    "while_loop": "while_loop",
    "scan": "scan",
    "associative_scan": "associative_scan",
    "map_impl": "map",
}

# What to write in the place of a branch, by whether a number decides it or how many values were found.
_NUMBER = "torch.where takes one of two results; numbers can come from shapes, or be Python's own when the model is packaged"
_FOUND = "torch.where and products with a mask keep all places, and topk a fixed number of them"
_TURNS = "torch.where takes one of two results, and a loop of Python's with a number of turns is written out"

# Operators the size of whose result is data, and what to write in their place.
_SIZED_BY_DATA = {
    "torchvision::nms": "package.nms(boxes, scores, iou_threshold, most), from pappus, gives so many at most",
    "aten::bincount": "torch.zeros(n, dtype=torch.int32).scatter_add(0, x, torch.ones_like(x, dtype=torch.int32)) counts n",
}

# The first of NVIDIA's architectures that converts E4M3.
_E4M3_SINCE = 89

_OPTIONS: dict[str, Any] = {
    "fx_wrapper": True,
    "compile_threads": 1,
    # Every matrix product and convolution is a Triton kernel.
    "max_autotune": True,
    "max_autotune_gemm_backends": "TRITON",
    "max_autotune_conv_backends": "TRITON",
    # Buffers get their places later.
    "allow_buffer_reuse": False,
    # The supervisor checks sizes; buffers are aligned.
    "size_asserts": False,
    "alignment_asserts": False,
    "scalar_asserts": False,
    # Weights have no values here.
    "joint_graph_constant_folding": False,
    "always_keep_tensor_constants": True,
    "triton.autotune_at_compile_time": False,
    # Channels innermost in all convolutional models whose sizes are known (added below): templates are made for that.
    # Kernels of one launch each: grids that depend on the call stay simple.
    "combo_kernels": False,
}


@dataclass
class Exported:
    """A model as a graph on a GPU that is not there."""

    program: Any
    fake_mode: Any
    inputs: list[str]
    outputs: list[str]
    weights: dict[str, torch.Tensor]
    state: dict[str, torch.Tensor]
    free: dimensions.Dimensions


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Has Python look for garbage afterwards: lowering makes little of it, and a fifth of its time went into looking."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


@_uncollected()
def lower(
    model: torch.nn.Module | torch.export.ExportedProgram,
    example_inputs: Sequence[Any],
    *,
    dynamic_shapes: Any = None,
    kwargs: Mapping[str, Any] | None = None,
    targets: Sequence[Target] = (pretend.MODEL_ARCH,),
    table: Table | None = None,
    candidates: int = 0,
    float32: str = precision.AS_TOLD,
    state: Sequence[str] = (),
) -> tuple[Plan, dimensions.Dimensions, Choices]:
    """The plan of a model, its free dimensions, and what was chosen from.

    ``float32`` is how its kernels multiply (:mod:`.precision`). ``state`` are buffers that are state beside those that the
    model changes. Raises :class:`Unsupported` with the operator's name and the line of the model.
    """
    if not torch.__version__.startswith(tuple(f"{release}." for release in SUPPORTED)):
        warnings.warn(f"packaging was tried with PyTorch {' and '.join(SUPPORTED)}, this is {torch.__version__}", stacklevel=3)
    exported = _export(model, tuple(example_inputs), dynamic_shapes, dict(kwargs or {}), state)
    _check_types(exported.program, targets)
    arch = max((t for t in targets if t.kind == "cuda"), key=lambda t: t.capability, default=pretend.MODEL_ARCH)
    shared_bytes = min(target.shared_bytes for target in targets)
    choices = Choices(arch, shared_bytes, table or Table(), points.shipped(arch), candidates, float32)
    with pretend.gpu(arch):
        try:
            _move(exported)
            return _run_inductor(exported, choices), exported.free, choices
        except PackageError:
            raise
        except Exception as error:
            refused = _cause(error)
            if refused is not None:
                raise Unsupported(refused.what, refused.why, refused.where or _node_of(error)[1]) from error
            operator, where = _node_of(error)
            at = f" (at {where})" if where else ""
            said = str(error).strip() or type(error).__name__
            raise PackageError(f"PyTorch cannot lower {operator or 'the model'}{at} to kernels: {said}") from error


def _check_types(program: Any, targets: Sequence[Target]) -> None:
    """Refuses numbers that Triton does not convert on one of the targets."""
    older = [target.arch for target in targets if target.kind == "cuda" and target.capability < _E4M3_SINCE]
    for node in program.graph.nodes if older else ():
        if getattr(node.meta.get("val"), "dtype", None) == torch.float8_e4m3fn:
            why = f"{older[0]} does not convert them; sm_{_E4M3_SINCE} and newer do, and all convert torch.float8_e5m2"
            raise Unsupported("numbers of torch.float8_e4m3fn", why, wrapper.place_of(node))


def _cause(error: BaseException | None) -> Unsupported | None:
    """What a decomposition of ours refused, under what PyTorch made of it."""
    while error is not None and not isinstance(error, Unsupported):
        error = error.__cause__ or getattr(error, "inner_exception", None) or error.__context__
    return error


def _node_of(error: BaseException) -> tuple[str | None, str | None]:
    """The operator that PyTorch was at when it failed, and its place in the model."""
    found: tuple[str | None, str | None] = (None, None)
    seen: BaseException | None = error
    while seen is not None:
        for frame, _ in traceback.walk_tb(seen.__traceback__):
            for name in ("n", "node"):
                node = frame.f_locals.get(name)
                if isinstance(node, torch.fx.Node) and node.op == "call_function":
                    found = (str(node.target), wrapper.place_of(node))
        seen = seen.__cause__ or seen.__context__
    return found


def _export(
    model: Any, args: tuple[Any, ...], dynamic_shapes: Any, kwargs: dict[str, Any], named_state: Sequence[str]
) -> Exported:
    given = isinstance(model, torch.export.ExportedProgram)
    if not given:
        _check_model(model)
    contiguous = lambda x: x.detach().contiguous() if isinstance(x, torch.Tensor) else x  # noqa: E731
    args, kwargs = torch.utils._pytree.tree_map(contiguous, (args, kwargs))
    try:
        with torch.no_grad(), quantized.portable() as known:
            if given:
                program = _copied(model)
            else:
                with recurrent.kept():
                    program = torch.export.export(model, args, kwargs, dynamic_shapes=dynamic_shapes)
            recurrent.rewrite(program)
            # Decomposes next to nothing, but tells what is changed in place.
            functional = program.run_decompositions(known)
    except Exception as error:
        where = _raised_at(error)
        if isinstance(error, GuardOnDataDependentSymNode):
            operator, instead = _decider(error)
            raise Unsupported(f"a branch or loop on what was computed{operator}", f"{_NO_DATA}: {instead}", where) from error
        place = f" (at {where})" if where else ""
        caches = re.search(r"\b\w*Cache\b", str(error))
        if caches:
            raise Unsupported(f"a {caches.group()} as input or output", _NO_CACHE, where) from error
        if isinstance(error, AssertionError) and not given:
            _refuse_shared(model)
        raise PackageError(f"torch.export cannot make a graph of the model{place}: {error}") from error
    _refuse_data(program)
    changed = _changed(program, functional)
    if quantized.occur(program):
        program = quantized.as_plain(program, functional)
    if complex_numbers.occur(functional):
        program = complex_numbers.as_pairs(program, functional)
    _leave_strides_open(program)
    single_rows.rewrite_attention(program)
    sampling.rewrite(program)
    inputs, outputs = _signature(program)
    _own_outputs(program)
    values = [node.meta.get("val") for node in program.graph.nodes]
    fake_mode = next((value.fake_mode for value in values if isinstance(value, FakeTensor)), None)
    if fake_mode is None:
        raise PackageError("the model has no tensor inputs")
    weights = {name: value.detach() for name, value in program.state_dict.items()}
    weights |= {name: value.detach() for name, value in program.constants.items() if isinstance(value, torch.Tensor)}
    buffers = dict(program.named_buffers()) | ({} if given else dict(model.named_buffers()))
    state = _zero_state(changed, named_state, buffers)
    return Exported(program, fake_mode, inputs, outputs, weights, state, dimensions.read(program, dynamic_shapes))


def _raised_at(error: BaseException) -> str | None:
    """The innermost line of the model that an exception passed through."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if wrapper.is_the_users(frame.filename)]
    return f"{own[-1].filename}:{own[-1].lineno}: {own[-1].line}" if own else None


def _decider(error: GuardOnDataDependentSymNode) -> tuple[str, str]:
    """The operator whose result decides a branch that cannot be followed, and what to write in its place."""
    if any("nms" in frame.name for frame in traceback.extract_tb(error.__traceback__)):
        return " by nms", _SIZED_BY_DATA["torchvision::nms"]
    numbers = set(re.findall(r"\bu\d+\b", str(getattr(error, "cond", ""))))
    # PyTorch has the graph up to here as text.
    for line in str(getattr(error, "partial_fx_graph", "")).splitlines():
        found = re.match(r'\s*\w+: "([^"]*)" = torch\.ops\.([\w.]+)\(', line)
        if found and numbers & set(re.findall(r"\bu\d+\b", found.group(1))):
            operator = found.group(2)
            return f" by {operator}", _NUMBER if operator.startswith("aten.item") else _FOUND
    return "", _NUMBER


def _leave_strides_open(program: Any) -> None:
    """Has nothing rely on how the processor's operators lay their results: Inductor's lay some of them otherwise."""
    for node in program.graph.find_nodes(op="call_function", target=torch.ops.aten.view.default):
        node.target = torch.ops.aten.reshape.default
    program.graph_module.recompile()


def _copied(program: Any) -> Any:
    """A program whose graph may be changed; copies of nodes that are called as functions of Python are get other names."""
    copied = copy.deepcopy(program)
    placeholders = [node for node in copied.graph.nodes if node.op == "placeholder"]
    for node, spec in zip(placeholders, copied.graph_signature.input_specs, strict=True):
        node.name = node.target = spec.arg.name
    copied.graph_module.recompile()
    return copied


def _check_model(model: Any) -> None:
    if not isinstance(model, torch.nn.Module):
        raise PackageError(f"{type(model).__name__} is no torch.nn.Module")
    if model.training:
        raise PackageError("the model is in training mode: call model.eval() first")
    trained = (torch.nn.modules.dropout._DropoutNd, torch.nn.modules.batchnorm._BatchNorm)
    for name, module in model.named_modules():
        if module.training and isinstance(module, trained):
            raise PackageError(f"{name}, a {type(module).__name__}, is in training mode: call model.eval() first")


def _refuse_data(program: Any) -> None:
    """Refuses steps and sizes that depend on data, where something can be said of the operator that asks for them."""
    for node in program.graph.nodes:
        name = getattr(node.target, "name", None)
        if node.op != "call_function" or not callable(name):
            continue
        if isinstance(node.target, HigherOrderOperator) and name() in _CONTROL_FLOW:
            raise Unsupported(_CONTROL_FLOW[name()], f"{_NO_DATA}: {_TURNS}", wrapper.place_of(node))
        instead = _SIZED_BY_DATA.get(name())
        if instead is not None:
            raise Unsupported(str(node.target), f"the size of its result is data: {instead}", wrapper.place_of(node))


def _changed(program: Any, functional: Any) -> list[str]:
    """Buffers that are changed; refuses what else is changed and outlives the call: parameters, inputs."""
    from torch.export.graph_signature import OutputKind

    changed_by = {node.name: node for node in functional.graph.nodes}
    buffers = []
    for spec in functional.graph_signature.output_specs:
        if spec.kind == OutputKind.BUFFER_MUTATION:
            buffers.append(str(spec.target))
        elif spec.kind != OutputKind.USER_OUTPUT:
            kind = spec.kind.name.removesuffix("_MUTATION").removeprefix("USER_").replace("_", " ").lower()
            node = changed_by.get(spec.arg.name)
            where = wrapper.innermost(node.meta.get("stack_trace") or "") if node is not None else None
            operator = _changing(program, where) or (str(node.target) if node is not None else "an operator")
            raise Unsupported(
                f"{operator}, which changes {kind} {spec.target!r}", "a function changes nothing but outputs and state", where
            )
    return buffers


def _zero_state(changed: Sequence[str], named: Sequence[str], buffers: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Buffers that are state, in the order of their names; refuses those that do not begin as the state of a session does."""
    for name in named:
        if name not in buffers:
            raise PackageError(f"state names {name!r}, which is no buffer of the model: it has {sorted(buffers)}")
    state = {name: buffers[name].detach() for name in sorted({*changed, *named})}
    for name, value in state.items():
        if bool(value.contiguous().reshape(-1).view(torch.uint8).any()):
            raise PackageError(
                f"buffer {name!r} is state, which is zero when a session begins, and holds something else: zero it before "
                f"packaging (model.get_buffer({name!r}).zero_()); what it starts with can be a buffer that forward only reads "
                "and adds"
            )
    return state


def _refuse_shared(model: torch.nn.Module) -> None:
    """Refuses buffers that share memory, after PyTorch failed: it cannot say what a change of one makes of the others."""
    found: dict[int, str] = {}
    for name, buffer in model.named_buffers(remove_duplicate=False):
        other = found.setdefault(buffer.untyped_storage().data_ptr(), name)
        if other != name and buffer.numel():
            raise PackageError(f"buffers {other!r} and {name!r} share memory, and one is changed: give each its own (clone())")


def _changing(program: Any, where: str | None) -> str | None:
    """The operator that works in place at a line of the model."""
    for node in program.graph.nodes:
        changes = node.op == "call_function" and getattr(getattr(node.target, "_schema", None), "is_mutable", False)
        if changes and wrapper.innermost(node.meta.get("stack_trace") or "") == where:
            return str(node.target)
    return None


def _signature(program: Any) -> tuple[list[str], list[str]]:
    """Names of inputs and outputs; refuses what a function cannot have."""
    from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind, TensorArgument

    inputs: list[str] = []
    outputs: list[str] = []
    for spec in program.graph_signature.input_specs:
        if spec.kind == InputKind.USER_INPUT and not isinstance(spec.arg, ConstantArgument):
            if not isinstance(spec.arg, TensorArgument):
                raise Unsupported(f"input {spec.arg.name!r}", "inputs of functions are tensors")
            inputs.append(spec.arg.name)
    _refuse_caches(program.call_spec)
    given = [spec for spec in program.graph_signature.output_specs if spec.kind == OutputKind.USER_OUTPUT]
    for at, spec in enumerate(given):
        if not isinstance(spec.arg, TensorArgument):
            value = getattr(spec.arg, "value", "a number")
            raise Unsupported(f"output {at} of the model, which is {value}", "outputs of functions are tensors: leave it out")
        outputs.append(spec.arg.name)
    return inputs, _output_names(program, len(outputs))


def _refuse_caches(calls: Any) -> None:
    """Refuses what Hugging Face's models return beside their scores, of which as many tensors would be outputs."""

    def types(spec: Any) -> list[type]:
        # Newer releases have a method for it.
        children = spec.children() if hasattr(spec, "children") else spec.children_specs
        return [spec.type, *(kind for child in children for kind in types(child))]

    for spec in (calls.in_spec, calls.out_spec):
        for kind in types(spec) if spec is not None else ():
            if getattr(kind, "__name__", "").endswith("Cache"):
                raise Unsupported(f"a {kind.__name__} as input or output", _NO_CACHE)


def _output_names(program: Any, count: int) -> list[str]:
    """``output``, or ``output0`` …, or the keys of a dictionary."""
    spec = program.call_spec.out_spec
    if spec is not None and spec.type is dict and spec.num_leaves == len(spec.context) == count:
        return [str(key) for key in spec.context]
    return ["output"] if count == 1 else [f"output{at}" for at in range(count)]


def _own_outputs(program: Any) -> None:
    """Gives every output memory of its own, without gaps; what buffers become is there beside the outputs, and stays."""
    from torch.export.graph_signature import OutputKind

    specs = program.graph_signature.output_specs
    graph = program.graph_module.graph
    (last,) = graph.find_nodes(op="output")
    (values,) = last.args
    with graph.inserting_before(last):
        given = []
        for value, spec in zip(values, specs, strict=True):
            if spec.kind != OutputKind.USER_OUTPUT:
                given.append(value)
                continue
            clone = graph.call_function(torch.ops.aten.clone.default, (value,), {"memory_format": torch.contiguous_format})
            clone.meta = dict(value.meta)
            fake = value.meta["val"]
            with fake.fake_mode:
                clone.meta["val"] = torch.clone(fake, memory_format=torch.contiguous_format)
            given.append(clone)
    last.args = (tuple(given),)
    for spec, value in zip(specs, given, strict=True):
        spec.arg.name = value.name
    program.graph_module.recompile()


def _move(exported: Exported) -> None:
    """Puts the graph on the GPU; weights become shapes without values."""
    from torch.export.passes import move_to_device_pass

    program, mode = exported.program, exported.fake_mode
    made: dict[int, Any] = {}

    def fake(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        # What is one tensor stays one.
        if id(value) not in made:
            made[id(value)] = mode.from_tensor(value.detach(), static_shapes=True)
        return made[id(value)]

    def parameter(value: Any) -> Any:
        is_parameter = isinstance(value, torch.nn.Parameter)
        return torch.nn.Parameter(fake(value), requires_grad=False) if is_parameter else fake(value)

    program._state_dict = {name: parameter(value) for name, value in program._state_dict.items()}
    program._constants = {name: fake(value) for name, value in program._constants.items()}
    program._example_inputs = None
    _forget_values(program)
    with mode:
        exported.program = move_to_device_pass(program, "cuda:0")


def _forget_values(program: Any) -> None:
    """Leaves shapes alone of what the graph remembers of its values: to move a value takes a GPU.

    A tensor that ``forward`` makes of numbers is a weight by now. What a function of one element was traced with, as those of
    FlexAttention are, is that element.
    """
    batched, unwrapped = torch._C._functorch.is_batchedtensor, torch._C._functorch.get_unwrapped

    def shape(value: Any) -> Any:
        while isinstance(value, torch.Tensor) and batched(value):
            value = unwrapped(value)
        if isinstance(value, FakeTensor):
            value.constant = None
        return value

    for module in program.graph_module.modules():
        for node in getattr(getattr(module, "graph", None), "nodes", ()):
            if "val" in node.meta:
                node.meta["val"] = torch.utils._pytree.tree_map(shape, node.meta["val"])


def _run_inductor(exported: Exported, choices: Choices) -> Plan:
    from torch._inductor import select_algorithm
    from torch.export.graph_signature import InputKind

    program = exported.program
    placeholders = [node for node in program.graph.nodes if node.op == "placeholder"]
    specs = zip(placeholders, program.graph_signature.input_specs, strict=True)
    user = [node.meta["val"] for node, spec in specs if spec.kind == InputKind.USER_INPUT]

    capture = wrapper.Capture(exported.inputs, exported.outputs, exported.weights, exported.state, exported.free)
    with contextlib.ExitStack() as during:
        for each in (torch.no_grad(), exported.fake_mode, wrapper.capturing(capture), *_changes()):
            during.enter_context(each)
        select_algorithm.add_preprocessing_fn(choices.pick)
        try:
            module = _with_buffers(program)
            args, named = torch.utils._pytree.tree_unflatten(user, program.call_spec.in_spec)
            options = _OPTIONS | {"force_layout_optimization": not exported.free.names}
            torch._inductor.aot_compile(module, args, named, options=options)
        except wrapper.Captured:
            pass
        finally:
            select_algorithm.clear_preprocessing_fns()
    plan = capture.result()
    # Kernels that users wrote say themselves how they multiply.
    ours = {name: replace(kernel, float32=choices.float32) for name, kernel in plan.kernels.items() if _is_inductors(name)}
    return replace(plan, kernels=plan.kernels | ours)


def _with_buffers(program: Any) -> Any:
    """The graph as a module whose constants are buffers of it: of those alone PyTorch keeps the names."""
    module = program.module(check_guards=False)
    for name, value in program.constants.items():
        path, _, leaf = name.rpartition(".")
        owner = module.get_submodule(path)
        if isinstance(value, torch.Tensor) and leaf not in owner._buffers and leaf not in owner._parameters:
            if hasattr(owner, leaf):
                delattr(owner, leaf)
            owner.register_buffer(leaf, value)
    return module


def _changes() -> tuple[contextlib.AbstractContextManager[None], ...]:
    """What is otherwise in Inductor while a model is lowered."""
    lowerings = convolutions.lowered(), quantized.lowered()
    return decompositions.used(), deferred.templates(), *lowerings, fusing.loops_of_templates()


def _is_inductors(kernel: str) -> bool:
    return kernel.startswith("triton_") or recurrent.is_step(kernel)
