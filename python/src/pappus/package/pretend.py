"""A GPU that is not there, for the time in which PyTorch lowers a model.

Inductor asks the device for its properties, and loads kernels to launch them. Here it is told the properties, and kernels are
neither compiled nor loaded: :mod:`.compiling` does that later, for every target. All of it is undone afterwards. These are
PyTorch's private parts: what is replaced here is looked at with every version that is supported (scripts/ecosystem).
"""

from __future__ import annotations

import contextlib
import hashlib
import types
from collections.abc import Iterator
from typing import Any
from unittest import mock

from .targets import Target

# Multiprocessors, registers and threads of each, by architecture: what Inductor bases its choices on.
_PROCESSORS = {"sm_80": 108, "sm_86": 84, "sm_89": 128, "sm_90": 132, "sm_100": 148, "sm_120": 170}
MODEL_ARCH = Target("cuda", "sm_90")


def processors(target: Target) -> int:
    """How many multiprocessors a GPU of this architecture has."""
    return _PROCESSORS.get(target.arch, 132)


class Uncompiled:
    """What stands for a compiled kernel: everything that is needed to compile it."""

    def __init__(self, src: Any, target: Any, options: Any) -> None:
        self.src = src
        self.target = target
        self.options = dict(options or {})
        self.hash = hashlib.sha256(f"{src.fn.src}{src.signature}{src.constants}{options}".encode()).hexdigest()
        self.metadata = types.SimpleNamespace(name=src.fn.__name__, shared=0, num_warps=self.options.get("num_warps", 4))
        self.asm: dict[str, Any] = {}


@contextlib.contextmanager
def gpu(target: Target) -> Iterator[None]:
    """PyTorch and Triton see a GPU of this architecture, on which nothing can run."""
    import torch
    import torch._dynamo.device_interface as interface
    import torch._inductor.graph
    import torch._subclasses.fake_tensor as fake_tensor
    import triton
    from torch._inductor.fx_passes import fuse_attention, misc_patterns, pad_mm
    from torch._inductor.runtime import triton_helpers
    from torch._inductor.runtime import triton_heuristics as heuristics

    properties = _properties(target)
    capability = divmod(target.capability, 10)
    fixed = {
        "is_available": True,
        "device_count": 1,
        "current_device": 0,
        "get_device_properties": properties,
        "get_device_capability": capability,
        "get_device_name": properties.name,
        "is_bf16_supported": True,
        "synchronize": None,
        "set_device": None,
        "_exchange_device": 0,
        "_maybe_exchange_device": 0,
        "is_initialized": False,
        "mem_get_info": (properties.total_memory, properties.total_memory),
        "_lazy_init": None,
        "set_rng_state": None,
        "is_current_stream_capturing": False,
        "get_rng_state": torch.zeros(16, dtype=torch.uint8),
    }
    answers = {name: _answer(value) for name, value in fixed.items()}
    undo = contextlib.ExitStack()
    with undo:
        # Last of all that is undone.
        undo.callback(_forget)

        def replace(owner: Any, name: str, value: Any) -> None:
            undo.enter_context(mock.patch.object(owner, name, value, create=True))

        for name, answer in answers.items():
            replace(torch.cuda, name, answer)
        for name in ("get_rng_state", "set_rng_state"):
            replace(torch.cuda.random, name, answers[name])
        replace(torch.cuda.graphs, "is_current_stream_capturing", answers["is_current_stream_capturing"])
        shared = "current_device set_device device_count synchronize get_device_properties is_bf16_supported is_available"
        for name in shared.split():
            replace(interface.CudaInterface, name, staticmethod(answers[name]))
        for name in ("exchange_device", "maybe_exchange_device"):
            replace(interface.CudaInterface, name, staticmethod(_answer(0)))
        undo.enter_context(mock.patch.dict(interface.caching_worker_device_properties, {"cuda": [properties]}))
        undo.enter_context(mock.patch.dict(interface.caching_worker_current_devices, {"cuda": 0}))
        # These allocate on the device.
        replace(fake_tensor, "init_gpu_context", _answer(None))
        replace(fuse_attention, "_sfdp_init", _answer(None))
        replace(pad_mm, "_pad_mm_init", _answer(None))
        replace(misc_patterns, "_misc_patterns_init", _answer(None))
        # This compares contents, which fake tensors do not have.
        replace(torch._inductor.graph, "is_same_tensor", lambda a, b: a is b)
        replace(triton_helpers, "set_driver_to_gpu", _answer(None))
        replace(triton, "compile", lambda src, target=None, options=None, **_: Uncompiled(src, target, options))
        replace(heuristics.CachingAutotuner, "_make_launchers", _answer(None))
        replace(heuristics.CachingAutotuner, "_dynamic_scale_rblock", _answer(None))
        replace(heuristics.StaticTritonCompileResult, "can_statically_launch", staticmethod(_answer(None)))
        undo.enter_context(_driver(target, properties))
        _forget()
        yield


def _forget() -> None:
    """PyTorch asks once whether Triton has a GPU, and keeps the answer."""
    import torch.utils._triton as asked

    for function in vars(asked).values():
        if hasattr(function, "cache_clear"):
            function.cache_clear()


def _answer(value: Any) -> Any:
    return lambda *_args, **_kwargs: value


def _properties(target: Target) -> types.SimpleNamespace:
    major, minor = divmod(target.capability, 10)
    return types.SimpleNamespace(
        name=f"a GPU of architecture {target.arch}",
        major=major,
        minor=minor,
        multi_processor_count=processors(target),
        total_memory=80 << 30,
        regs_per_multiprocessor=65536,
        max_threads_per_multi_processor=2048,
        max_threads_per_block=1024,
        warp_size=32,
        shared_memory_per_block=48 << 10,
        shared_memory_per_block_optin=target.shared_bytes,
        shared_memory_per_multiprocessor=target.shared_bytes + 1024,
        L2_cache_size=50 << 20,
        gcnArchName="",
        is_integrated=0,
        is_multi_gpu_board=0,
        clock_rate=1_700_000,
        memory_clock_rate=2_600_000,
        memory_bus_width=5120,
        uuid="",
    )


@contextlib.contextmanager
def _driver(target: Target, properties: types.SimpleNamespace) -> Iterator[None]:
    """Triton's driver: knows the target, launches nothing."""
    import torch
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    def no(*_args: Any, **_kwargs: Any) -> Any:
        raise RuntimeError("there is no GPU: kernels are only compiled")

    stand_in = types.SimpleNamespace(
        utils=types.SimpleNamespace(
            get_device_properties=_answer(
                {
                    "max_shared_mem": target.shared_bytes,
                    "max_num_regs": 65536,
                    "multiprocessor_count": properties.multi_processor_count,
                    "warpSize": 32,
                    "sm_clock_rate": properties.clock_rate,
                    "mem_clock_rate": properties.memory_clock_rate,
                    "mem_bus_width": properties.memory_bus_width,
                }
            ),
            load_binary=no,
        ),
        get_current_target=_answer(GPUTarget("cuda", target.capability, 32)),
        get_current_device=_answer(0),
        set_current_device=_answer(None),
        get_current_stream=_answer(0),
        get_device_capability=_answer(divmod(target.capability, 10)),
        get_active_torch_device=lambda *_: torch.device("cuda", 0),
        get_device_interface=lambda *_: torch.cuda,
        get_benchmarker=no,
        launcher_cls=no,
    )
    before = driver._active
    driver.set_active(stand_in)
    try:
        yield
    finally:
        driver._active = before
