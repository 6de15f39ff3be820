"""From PyTorch models, functions of JAX and Triton kernels to functions, without a GPU.

>>> import torch
>>> from pappus import package
>>> model, example = torch.nn.Linear(32, 16).eval(), torch.randn(8, 32)
>>> built = package.torch(model, (example,), targets=["sm_90"])
>>> built.blueprint["inputs"], built.blueprint["outputs"], built.blueprint["weights"]
(['input'], ['output'], ['weight', 'bias'])
>>> built.save("model.pappus").name
'model.pappus'

``pappus function add model model.pappus`` registers it. docs/packaging.md has the rest.

In reading order: :mod:`.lowering` and :mod:`.jit` make a :class:`~.plan.Plan` of a model and of kernels, :mod:`.build`
compiles it, :mod:`.files` writes it, :mod:`.interpret` runs it on the processor. For JAX, :mod:`.xla_lowering` has XLA compile,
:mod:`.xla_messages` reads what it wrote, :mod:`.xla_plan` makes a plan of it, :mod:`.xla_build` the package.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pappus._extras import install

from .compose import Composition
from .errors import PackageError, Unsupported
from .files import Package

if TYPE_CHECKING:
    from .jit import Array, Weight

__all__ = [
    "Builder",
    "Composition",
    "Package",
    "PackageError",
    "Unsupported",
    "array",
    "compose",
    "jax",
    "nms",
    "torch",
    "triton",
    "weight",
]

_NEEDS = f"packaging needs PyTorch and Triton: {install('torch')}"


def compose() -> Composition:
    """Functions that run as one: steps of functions that are registered, linked when the composition is.

    >>> from pappus import package
    >>> twice = package.compose()
    >>> first = twice.step("first", "scale", {"x": twice.input("samples")})
    >>> twice.output("result", twice.step("second", "scale", {"x": first}))
    >>> [step["name"] for step in twice.document["steps"]]
    ['first', 'second']

    ``twice.save("twice.json")`` writes it, and ``pappus function add twice twice.json`` registers it.
    """
    return Composition()


def torch(
    model: Any,
    example_inputs: Sequence[Any] = (),
    *,
    dynamic_shapes: Any = None,
    kwargs: Mapping[str, Any] | None = None,
    targets: str | Sequence[str] = ("sm_90",),
    candidates: int = 0,
    tuning: str | os.PathLike[str] | None = None,
    tuned_for: str | None = None,
    float32: str | None = None,
    ptx: bool = False,
    state: Sequence[str] = (),
    batch: bool = True,
    say: Callable[[str], None] | None = None,
) -> Package:
    """Packages a PyTorch model.

    ``model`` is a module, or a ``torch.export.ExportedProgram``, which needs no example inputs. The module is exported with
    ``torch.export`` for inputs like the examples (``dynamic_shapes`` as there), and every operator becomes a Triton kernel.
    One that has no such form raises :class:`Unsupported` with its name and the line of the model that it came from, before
    anything is written. Inputs are called what ``forward`` calls them, outputs ``output``, or ``output0`` …, or the keys of
    the dictionary that it returns. A model that draws random numbers has one more input, ``seed``.

    With ``candidates``, so many tile configurations of each matrix product and convolution go with the package, for
    ``pappus package tune`` to time. ``tuning`` is a package that was tuned so (a folder or a ``.pappus`` file, or its table
    alone): its fastest ones are taken, and its measurements of this model's operations go with the package, so that the
    next one can be made with this one. ``tuned_for`` names the GPU, where the table has several.

    ``float32`` is how matrix products and convolutions multiply float32: ``"ieee"`` in full, ``"tf32"`` on tensor cores with
    10 bits of each factor, ``"tf32x3"`` in three such products, about as exact as in full. Without it, ``"tf32"`` where PyTorch
    may use that (``torch.backends.cuda.matmul.allow_tf32``, ``torch.backends.cudnn.allow_tf32``), else ``"tf32x3"``. GPUs that
    lack what is asked for multiply in full.

    With ``ptx``, the kernels' PTX lies beside NVIDIA's machine code. It is what workers that tenants share can take
    (docs/operations/sharing.md); all others run the machine code.

    Buffers that ``forward`` changes are state (docs/sessions.md): they stay from call to call of a session. State is zero when
    a session begins, so these buffers must be zero here. ``state`` names further buffers that are state though ``forward`` only
    reads them, or does not use them: functions that share a session have the same state.

    A free dimension that is the first of every input and output is the batch (docs/blueprint.md): waiting calls run side by
    side, as one. The model is run twice on the processor to see whether its items stay apart; what mixes them for few inputs
    alone is not seen. ``batch=False`` keeps calls by themselves.

    ``say`` is called with a line about what is being done and how much is left of it: ``say=print``.
    """
    if hasattr(example_inputs, "shape") or isinstance(example_inputs, str | Mapping):
        kind = type(example_inputs).__name__
        raise PackageError(f"example_inputs is a {kind}, expected a tuple of the model's arguments: (example,)")
    try:
        from . import lowering
    except ModuleNotFoundError as error:
        raise PackageError(f"{_NEEDS} ({error})") from error
    from . import batching, build, points, precision
    from . import targets as archs

    chosen = archs.parse(targets)
    tell = say or (lambda _: None)
    tell("exporting and lowering the model")
    plan, free, choices = lowering.lower(
        model,
        example_inputs,
        dynamic_shapes=dynamic_shapes,
        kwargs=kwargs,
        targets=chosen,
        table=points.read_table(tuning, tuned_for),
        candidates=candidates,
        float32=precision.check(float32),
        state=state,
    )
    if batch:
        plan.batch = batching.of(plan, free, model, example_inputs, kwargs or {}, tell)
    built = build.build(plan, chosen, tell, ptx=ptx)
    if choices.kept:
        tell(f"compiling candidates of {len(choices.kept)} operations")
    return replace(built, extra=choices.files(chosen))


def jax(
    function: Callable[..., Any],
    example_inputs: Sequence[Any],
    *,
    weights: Any = None,
    targets: str | Sequence[str] = ("sm_90",),
) -> Package:
    """Packages a function of JAX.

    The function is traced for arguments like the examples (arrays, or ``jax.ShapeDtypeStruct``), and XLA compiles it to
    kernels. What it leaves to a library, or decides by data, raises :class:`Unsupported` with its name and the line that it
    came from, before anything is written. Inputs are called what the function calls them (``batch.mask`` for what lies in a
    tree), outputs ``output``, or ``output0`` …, or the keys of the dictionary that it returns.

    ``weights`` is a tree of arrays that the function takes as its first argument; they belong to the package, called by their
    way into the tree. So do arrays that the function holds itself (``constant0`` …).
    """
    try:
        from . import xla_build
    except ModuleNotFoundError as error:
        raise PackageError(f"packaging functions of JAX needs it: {install('jax')}: {error}") from error
    from . import targets as archs

    return xla_build.package(function, example_inputs, weights, archs.parse(targets))


def nms(boxes: Any, scores: Any, iou_threshold: float, most: int) -> tuple[Any, Any]:
    """The best of boxes that overlap, for models that are packaged: what ``torchvision.ops.nms`` gives, up to ``most`` of it.

    ``boxes`` are ``(…, count, 4)`` of ``x1, y1, x2, y2``, ``scores`` ``(…, count)``; dimensions before are pictures. A box is
    kept, in the order of scores, if its intersection over union with each that is kept is at most ``iou_threshold``. The
    result is where those kept are, ``(…, most)`` with -1 behind the last one, and how many there are, ``(…)``. It is made of
    ordinary operators, a few for each of ``most``.

    >>> import torch
    >>> from pappus import package
    >>> boxes = torch.tensor([[0.0, 0, 4, 4], [0, 0, 4, 5], [6, 6, 8, 8]])
    >>> package.nms(boxes, torch.tensor([0.5, 0.9, 0.2]), 0.5, 4)
    (tensor([ 1,  2, -1, -1]), tensor(2))
    """
    from .boxes import nms as choose

    return choose(boxes, scores, iou_threshold, most)


def triton(
    kernel: Any,
    grid: Sequence[Any] | Callable[[Mapping[str, Any]], Sequence[Any]],
    *args: Any,
    outputs: Sequence[Array],
    inputs: Sequence[Array] | None = None,
    targets: str | Sequence[str] = ("sm_90",),
    config: int | None = None,
    configs: Sequence[Any] | None = None,
    candidates: int = 0,
    extents: Mapping[str, int] | None = None,
    tuning: str | os.PathLike[str] | None = None,
    tuned_for: str | None = None,
    **kwargs: Any,
) -> Package:
    """Packages one launch of a ``@triton.jit`` kernel, written as ``kernel[grid](*args, **kwargs)`` would be.

    Arrays among the arguments are described by :func:`array` and :func:`weight`. What ``config`` and ``configs`` are says
    :meth:`Builder.launch`, the rest :meth:`Builder.build`. Several launches: :class:`Builder`.
    """
    builder = Builder()
    builder.launch(kernel, grid, *args, config=config, configs=configs, **kwargs)
    return builder.build(
        outputs=outputs,
        inputs=inputs,
        targets=targets,
        candidates=candidates,
        extents=extents,
        tuning=tuning,
        tuned_for=tuned_for,
    )


def array(name: str, dtype: Any, shape: Sequence[Any]) -> Array:
    """Describes an input, a buffer or an output; dimensions are numbers, or names that every call decides."""
    described: Array = _jit().array(name, dtype, shape)
    return described


def weight(name: str, data: Any) -> Weight:
    """An array of constants that belongs to the function."""
    described: Weight = _jit().weight(name, data)
    return described


class Builder:
    """Several launches, one after the other, with buffers between them."""

    def __init__(self) -> None:
        self._builder = _jit().Builder()

    def launch(
        self, kernel: Any, grid: Any, *args: Any, config: int | None = None, configs: Sequence[Any] | None = None, **kwargs: Any
    ) -> None:
        """Adds ``kernel[grid](*args, **kwargs)``.

        Its configurations are those of ``@triton.autotune``, or ``configs``: a list of ``triton.Config`` in their place. Of
        several, the fastest one of the table that :meth:`build` is given is taken, else the first; ``config`` takes the one
        of this number, whatever was measured. :class:`PackageError` where there is none of this number, and
        :class:`Unsupported` for one with a ``pre_hook``.
        """
        self._builder.launch(kernel, grid, *args, config=config, configs=configs, **kwargs)

    def build(
        self,
        *,
        outputs: Sequence[Array],
        inputs: Sequence[Array] | None = None,
        targets: str | Sequence[str] = ("sm_90",),
        candidates: int = 0,
        extents: Mapping[str, int] | None = None,
        tuning: str | os.PathLike[str] | None = None,
        tuned_for: str | None = None,
    ) -> Package:
        """Compiles what was added.

        Arrays that are neither weights, inputs nor outputs are buffers. Without ``inputs``, all but the outputs are.

        With ``candidates``, the first so many configurations of each launch that has several go with the package, for ``pappus
        package tune`` to time, on arrays of zeros; ``extents`` are the numbers for which dimensions with a name are timed.
        ``tuning`` is a package that was tuned so, or its table, and ``tuned_for`` the GPU where it has several: the fastest
        ones are taken, and the measurements go with the package.
        """
        from . import build, points
        from . import targets as archs

        chosen, table = archs.parse(targets), points.read_table(tuning, tuned_for)
        built = build.build(self._builder.plan(outputs, inputs, table), chosen)
        files = points.files(self._builder.candidates(candidates, extents or {}), chosen) if candidates else {}
        return replace(built, extra=files | table.files(self._builder.operations()))


def _jit() -> Any:
    try:
        from . import jit
    except ModuleNotFoundError as error:
        raise PackageError(f"{_NEEDS} ({error})") from error
    return jit
