"""The few calls of the CUDA driver that fuzz.py needs, through ctypes: Python's own library and libcuda are all it takes."""

import ctypes
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p


class Failed(Exception):
    """A call of the driver that failed; `name` is the error's."""

    def __init__(self, call: str, name: str):
        super().__init__(f"{call}: {name}")
        self.name = name


class AllocationProp(ctypes.Structure):
    """CUmemAllocationProp of the driver's API: memory that stays on one device."""

    _fields_ = [
        ("type", c_int),
        ("handle_types", c_int),
        ("location_type", c_int),
        ("location_id", c_int),
        ("win32", c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    ]


class AccessDesc(ctypes.Structure):
    """CUmemAccessDesc: who may reach a mapping, and how."""

    _fields_ = [("location_type", c_int), ("location_id", c_int), ("flags", c_int)]


class Device:
    """The first GPU, with a context of its own."""

    def __init__(self):
        self.library = ctypes.CDLL("libcuda.so.1")
        self("cuInit", 0)
        device, context = c_int(), c_void_p()
        self("cuDeviceGet", byref(device), 0)
        self("cuDevicePrimaryCtxRetain", byref(context), device)
        self("cuCtxSetCurrent", context)

    def __call__(self, name: str, *arguments):
        """Calls the driver; raises what it answers."""
        code = getattr(self.library, name)(*arguments)
        if code != 0:
            text = c_char_p()
            self.library.cuGetErrorName(code, byref(text))
            raise Failed(name, (text.value or b"unknown").decode())

    def name(self) -> str:
        """What the GPU is called."""
        text = ctypes.create_string_buffer(256)
        self("cuDeviceGetName", text, 256, 0)
        return text.value.decode()

    def reserve(self, size: int, alignment: int) -> int:
        """Addresses that nothing is mapped to."""
        at = c_uint64()
        self("cuMemAddressReserve", byref(at), c_size_t(size), c_size_t(alignment), c_uint64(0), c_uint64(0))
        return at.value

    def memory(self, size: int) -> int:
        """Memory without an address."""
        handle = c_uint64()
        prop = AllocationProp(type=1, location_type=1)
        self("cuMemCreate", byref(handle), c_size_t(size), byref(prop), c_uint64(0))
        return handle.value

    def fill_with(self, base: int, size: int, handle: int, block: int):
        """Maps one block of memory again and again, until all of `size` bytes lead to it."""
        for at in range(base, base + size, block):
            self("cuMemMap", c_uint64(at), c_size_t(block), c_size_t(0), c_uint64(handle), c_uint64(0))
        access = AccessDesc(1, 0, 3)
        self("cuMemSetAccess", c_uint64(base), c_size_t(size), byref(access), c_size_t(1))

    def set(self, at: int, word: int, count: int):
        """Writes one word many times."""
        self("cuMemsetD32_v2", c_uint64(at), c_uint(word), c_size_t(count))

    def read(self, at: int, size: int) -> bytes:
        """What is at an address."""
        out = ctypes.create_string_buffer(size)
        self("cuMemcpyDtoH_v2", out, c_uint64(at), c_size_t(size))
        return out.raw

    def write(self, at: int, data: bytes):
        """Puts bytes at an address."""
        self("cuMemcpyHtoD_v2", c_uint64(at), data, c_size_t(len(data)))

    def load(self, text: str) -> c_void_p:
        """A module of PTX; the driver compiles it."""
        module = c_void_p()
        self("cuModuleLoadData", byref(module), text.encode() + b"\0")
        return module

    def unload(self, module: c_void_p):
        """Forgets a module."""
        self("cuModuleUnload", module)

    def run(self, module: c_void_p, kernel: str, blocks: int, threads: int, *values):
        """Launches a kernel, and waits until it is over."""
        function = c_void_p()
        self("cuModuleGetFunction", byref(function), module, kernel.encode())
        pointers = (c_void_p * len(values))(*(ctypes.cast(ctypes.pointer(v), c_void_p) for v in values))
        self(
            "cuLaunchKernel", function, blocks, 1, 1, threads, 1, 1, 0, c_void_p(), pointers,
            POINTER(c_void_p)(),
        )  # fmt: skip
        self("cuCtxSynchronize")
