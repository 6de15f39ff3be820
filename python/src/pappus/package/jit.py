"""Kernels in the Triton language, launched one after the other → a plan.

Arrays are descriptions, not data. Their dimensions may be numbers or names; a name is a dimension that every call decides.
A launch may have several configurations, of which one is taken and others may go along to be timed. What the kernels are given
is specialised as Triton's own compiler does it at a launch: a 1 is a constant, multiples of 16 are known to be such, all
pointers are aligned. Numbers that depend on the call are not specialised.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy

from . import expressions, sizes
from .errors import PackageError, Unsupported
from .plan import (
    DTYPE_BYTES,
    DTYPES,
    NOT_NUMPYS,
    ArrayType,
    KernelSource,
    Launch,
    Plan,
    Pointer,
    bits,
    dense_bytes,
    unused_name,
)
from .points import Table
from .sizes import Size

_POINTEES = {dtype: name for name, dtype in DTYPES.items() if name not in ("u1",)}
# Settings of a launch that are no parameters.
_OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg", "enable_fp_fusion")


@dataclass(frozen=True, eq=False)
class Array:
    """An input, a buffer or an output: a name, an element type, dimensions."""

    name: str
    dtype: str
    shape: tuple[sympy.Expr, ...]

    @property
    def elements(self) -> sympy.Expr:
        """How many there are."""
        return sympy.prod(self.shape)


@dataclass(frozen=True, eq=False)
class Weight(Array):
    """An array with contents, which belongs to the function."""

    data: Any = None


def array(name: str, dtype: Any, shape: Sequence[int | str | sympy.Expr]) -> Array:
    """Describes an array; a dimension may be a number, a name, or an expression of other arrays' dimensions.

    >>> x = array("x", "f32", ("n", 64))
    >>> x.shape[0] * 2, x.elements
    (2*n, 64*n)
    """
    return Array(name, _dtype(dtype), tuple(_dimension(size) for size in shape))


def weight(name: str, data: Any) -> Weight:
    """An array of constants, from a numpy array or a tensor."""
    import numpy

    kind = _dtype(data.dtype) if hasattr(data, "dtype") else None
    if hasattr(data, "detach"):
        data = data.detach().cpu().contiguous()
        if kind in NOT_NUMPYS:
            data = bits(data)
        data = data.numpy()
    data = numpy.ascontiguousarray(data)
    return Weight(name, kind or _dtype(data.dtype), tuple(map(sympy.Integer, data.shape)), data)


@dataclass(frozen=True)
class _Form:
    """A launch in one configuration: arrays, numbers and expressions."""

    source: KernelSource
    values: Mapping[str, Any]
    grid: Sequence[Any]


@dataclass(frozen=True)
class _Given:
    """A launch as it was written, in each of its configurations, by their names; the first is taken where none was measured."""

    operation: str
    forms: Mapping[str, _Form]


@dataclass
class Builder:
    """Launches in the order in which they are added."""

    _launches: list[_Given] = field(default_factory=list)
    _arrays: dict[str, Array] = field(default_factory=dict)

    def launch(
        self,
        kernel: Any,
        grid: Sequence[Any] | Callable[[Mapping[str, Any]], Sequence[Any]],
        *args: Any,
        config: int | None = None,
        configs: Sequence[Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Adds a launch, written as ``kernel[grid](*args, **kwargs)`` would be.

        Configurations are those of ``@triton.autotune``, or ``configs`` (``triton.Config``); with ``config`` only the one of
        this number.
        """
        function, choices = _unwrap(kernel, config, configs)
        names = {parameter.name for parameter in function.params}
        forms: dict[str, _Form] = {}
        for chosen in choices:
            given = _bind(function, args, kwargs, chosen)
            options = {name: given[name] for name in _OPTIONS if name in given}
            # A parameter of that name is given the number, too, as Triton does.
            given = {name: value for name, value in given.items() if name not in options or name in names}
            for name, compute in _heuristics(kernel).items():
                given[name] = compute(given)
            source, values = _specialize(function, given, options)
            blocks = grid(given) if callable(grid) else grid
            # Some heuristics make one of two configurations.
            forms.setdefault(_named(chosen), _Form(source, values, [*blocks, *[1] * (3 - len(blocks))]))
            for value in given.values():
                if isinstance(value, Array):
                    known = self._arrays.setdefault(value.name, value)
                    if known is not value:
                        raise PackageError(f"two arrays are called {value.name!r}")
        varied = {name for chosen in choices for name in chosen}
        operation = _operation(function, _bind(function, args, kwargs, {}), varied)
        self._launches.append(_Given(operation, forms))

    def candidates(self, count: int, extents: Mapping[str, int]) -> dict[str, dict[str, Plan]]:
        """Of each operation that has several configurations the first ``count``, each as one launch on zeros.

        ``extents`` are numbers for named dimensions, for which they are timed.
        """
        symbols = {_dimension(name): sizes.absolute(extent) for name, extent in extents.items()}
        found: dict[str, dict[str, Plan]] = {}
        for launch in self._launches:
            if len(launch.forms) > 1:
                chosen = list(launch.forms.items())[:count]
                found[launch.operation] = {name: _alone(form, symbols) for name, form in chosen}
        return found

    def operations(self) -> set[str]:
        """What tables of measurements call the launches."""
        return {launch.operation for launch in self._launches}

    def plan(self, outputs: Sequence[Array], inputs: Sequence[Array] | None = None, table: Table | None = None) -> Plan:
        """The plan of what was added, in the fastest configurations of the table.

        Without ``inputs``, these are all arrays that are neither weights nor outputs, in the order of their first use.
        """
        arrays = self._arrays
        if inputs is None:
            inputs = [a for a in arrays.values() if not isinstance(a, Weight) and a not in outputs]
        for one in [*inputs, *outputs]:
            if arrays.setdefault(one.name, one) is not one:
                raise PackageError(f"two arrays are called {one.name!r}")
        symbols = _dimensions(inputs)
        plan = Plan(inputs=[a.name for a in inputs], outputs=[a.name for a in outputs], reads_zeros=True)
        for one in arrays.values():
            shape = tuple(expressions.to_size(size, symbols) for size in one.shape)
            if isinstance(one, Weight):
                plan.weights[one.name] = one.data
            elif one not in inputs:
                plan.buffers[one.name] = dense_bytes(one.dtype, shape)
            plan.types[one.name] = ArrayType(one.dtype, shape)
        for launch in self._launches:
            # A configuration that the caller said is the only one, whatever the table says.
            several = len(launch.forms) > 1
            fastest = table.choice(launch.operation, launch.forms) if table is not None and several else None
            form = launch.forms.get(fastest or "") or next(iter(launch.forms.values()))
            # One kernel for each way in which it was specialised.
            name = next((n for n, other in plan.kernels.items() if _same(other, form.source)), None)
            if name is None:
                name = unused_name(form.source.function.__name__, plan.kernels)
                plan.kernels[name] = form.source
            plan.steps.append(_step(name, form, symbols))
        return plan


def _step(name: str, form: _Form, symbols: Mapping[sympy.Symbol, Size]) -> Launch:
    arguments = {parameter: _resolve(value, symbols) for parameter, value in form.values.items()}
    x, y, z = (expressions.to_size(blocks, symbols) for blocks in form.grid)
    return Launch(name, arguments, (x, y, z))


def _alone(form: _Form, symbols: Mapping[sympy.Symbol, Size]) -> Plan:
    """One launch on zeros; its smallest array is what the call answers, since a function has an output."""
    arrays = [value for value in form.values.values() if isinstance(value, Array)]
    named = {symbol for one in arrays for size in one.shape for symbol in size.free_symbols}
    named |= {s for value in [*form.values.values(), *form.grid] if isinstance(value, sympy.Expr) for s in value.free_symbols}
    missing = sorted(str(symbol) for symbol in named - symbols.keys())
    if missing:
        raise PackageError(f"dimensions {missing} are free: say for which numbers candidates are timed, with extents={{…}}")
    kernel = form.source.function.__name__
    if not arrays:
        raise PackageError(f"kernel {kernel} takes no array: there is nothing that it computes")
    plan = Plan(kernels={kernel: form.source}, steps=[_step(kernel, form, symbols)])
    for one in arrays:
        plan.buffers[one.name] = dense_bytes(one.dtype, [expressions.to_size(size, symbols) for size in one.shape])
    plan.outputs = [min(plan.buffers, key=lambda name: (sizes.known(plan.buffers[name]) or 0, name))]
    return plan


def _operation(function: Any, given: Mapping[str, Any], varied: set[str]) -> str:
    """A launch without its configuration: kernel, arrays and numbers, such as ``softmax x_ptr=f32[n,64] scale=0.5``."""
    shown = []
    for name, value in sorted(given.items()):
        if name in varied:
            continue
        if isinstance(value, Array):
            value = f"{value.dtype}[{','.join(str(size) for size in value.shape)}]"
        shown.append(f"{name}={value}")
    return " ".join([function.__name__, *shown])


def _named(chosen: Mapping[str, Any]) -> str:
    """A configuration, such as ``BLOCK=128 num_warps=4``."""
    return " ".join(f"{name}={value}" for name, value in sorted(chosen.items()))


def _resolve(value: Any, symbols: Mapping[sympy.Symbol, Size]) -> Pointer | Size | int | float:
    if isinstance(value, Array):
        return Pointer(value.name)
    if isinstance(value, sympy.Expr) and not value.is_number:
        return expressions.to_size(value, symbols)
    return float(value) if isinstance(value, float) else int(value)


def _dimensions(inputs: Sequence[Array]) -> dict[sympy.Symbol, Size]:
    """Sizes of the named dimensions."""
    named = {symbol for one in inputs for size in one.shape for symbol in size.free_symbols}
    return {symbol: sizes.free(str(symbol)) for symbol in named}


def _unwrap(kernel: Any, config: int | None, configs: Sequence[Any] | None) -> tuple[Any, list[Mapping[str, Any]]]:
    """The function under ``@triton.autotune`` and ``@triton.heuristics``, and its configurations' values."""
    while not hasattr(kernel, "params"):
        own = getattr(kernel, "configs", None)
        configs = own if configs is None else configs
        if not hasattr(kernel, "fn"):
            raise PackageError(f"{kernel!r} is no @triton.jit function")
        kernel = kernel.fn
    if configs is None:
        if config:
            raise PackageError(f"kernel {kernel.__name__} has no configurations, {config} is none of them")
        return kernel, [{}]
    if config is not None and not 0 <= config < len(configs):
        raise PackageError(f"there are {len(configs)} configurations, {config} is none of them")
    taken = list(configs) if config is None else [configs[config]]
    if not taken:
        raise PackageError(f"kernel {kernel.__name__} is given no configuration to choose from")
    for one in taken:
        if not hasattr(one, "all_kwargs"):
            raise PackageError(f"{one!r} is no triton.Config")
        if getattr(one, "pre_hook", None) is not None:
            raise Unsupported(f"kernel {kernel.__name__}: the pre_hook of {one}", "no code runs on the host before a launch")
    return kernel, [{name: value for name, value in one.all_kwargs().items() if value is not None} for one in taken]


def _heuristics(kernel: Any) -> dict[str, Callable[[Mapping[str, Any]], Any]]:
    found: dict[str, Any] = {}
    while not hasattr(kernel, "params"):
        found |= getattr(kernel, "values", {})
        kernel = kernel.fn
    return found


def _bind(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], chosen: Mapping[str, Any]) -> dict[str, Any]:
    names = [parameter.name for parameter in function.params]
    if len(args) > len(names):
        raise PackageError(f"kernel {function.__name__} takes {len(names)} parameters, it is given {len(args)}")
    given = dict(zip(names, args, strict=False))
    for name, value in {**chosen, **kwargs}.items():
        if name in given or (name not in names and name not in _OPTIONS):
            raise PackageError(f"kernel {function.__name__} takes no further {name!r}")
        given[name] = value
    return given


def _specialize(function: Any, given: Mapping[str, Any], options: Mapping[str, Any]) -> tuple[KernelSource, dict[str, Any]]:
    signature: dict[str, str] = {}
    constants: dict[tuple[int, ...], Any] = {}
    attributes: dict[tuple[int, ...], list[list[Any]]] = {}
    values: dict[str, Any] = {}
    aligned = [["tt.divisibility", 16]]
    for at, parameter in enumerate(function.params):
        name = parameter.name
        if name not in given:
            if not parameter.has_default:
                raise PackageError(f"kernel {function.__name__}: parameter {name!r} is missing")
            value = parameter.default
        else:
            value = given[name]
        if isinstance(value, sympy.Integer):
            value = int(value)
        special = not parameter.do_not_specialize
        constant = parameter.is_constexpr or value is None
        constant = constant or (special and isinstance(value, int) and not isinstance(value, bool) and value == 1)
        if constant:
            if isinstance(value, Array) or (isinstance(value, sympy.Expr) and not value.is_number):
                raise PackageError(f"kernel {function.__name__}: {name} is a constant, it is given {value}")
            signature[name], constants[(at,)] = "constexpr", value
            continue
        signature[name] = _kind(function, name, value, getattr(parameter, "annotation_type", "") or "")
        multiple = isinstance(value, int) and not isinstance(value, bool) and value % 16 == 0
        align = not getattr(parameter, "do_not_specialize_on_alignment", False)
        if isinstance(value, Array) or (special and align and multiple):
            attributes[(at,)] = aligned
        values[name] = value
    return KernelSource(function, signature, constants, attributes, dict(options)), values


def _kind(function: Any, name: str, value: Any, annotated: str) -> str:
    """Triton's type of a parameter that is passed."""
    if isinstance(value, Array):
        return f"*{_POINTEES[value.dtype]}"
    if annotated:
        return annotated
    if isinstance(value, bool):
        return "u1"
    if isinstance(value, float):
        return "fp32"
    if isinstance(value, int):
        if -(2**31) <= value < 2**31:
            return "i32"
        return "i64" if value < 2**63 else "u64"
    if isinstance(value, sympy.Expr):
        return "i32"
    raise Unsupported(f"kernel {function.__name__}, parameter {name}", f"a {type(value).__name__} cannot be passed")


def _same(a: KernelSource, b: KernelSource) -> bool:
    # By how they are written: 2, 2.0 and True are equal, and are not the same in a kernel.
    constants, others = ({at: repr(value) for at, value in each.constants.items()} for each in (a, b))
    same = constants == others and (a.signature, a.attributes, a.options) == (b.signature, b.attributes, b.options)
    return a.function is b.function and same


def _dimension(size: int | str | sympy.Expr) -> sympy.Expr:
    if isinstance(size, str):
        return sympy.Symbol(size, integer=True, positive=True)
    return sympy.sympify(size)


def _dtype(dtype: Any) -> str:
    """Blueprint's name of an element type that numpy, PyTorch or blueprints name."""
    name = str(dtype).removeprefix("torch.")
    if name in DTYPE_BYTES:
        return name
    if name.replace("float8_", "f8") in NOT_NUMPYS:
        return name.replace("float8_", "f8")
    short = {"float": "f", "bfloat": "bf", "uint": "u", "int": "i"}
    for long in ("bfloat", "float", "uint", "int"):
        if name.startswith(long) and name.removeprefix(long) in ("8", "16", "32", "64"):
            return short[long] + name.removeprefix(long)
    raise PackageError(f"{dtype!r} is no element type of arrays, expected one of {', '.join(DTYPE_BYTES)}")
