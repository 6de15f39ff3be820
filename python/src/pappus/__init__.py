"""The Python client of Pappus: functions made of nothing but GPU kernels, called with NumPy arrays.

>>> import pappus
>>> with pappus.connect(socket) as client:
...     vec_add = client.function("vec_add")
...     vec_add(np.float32([1, 2, 3]), np.float32([10, 20, 30]))
array([11., 22., 33.], dtype=float32)

In reading order:

- :mod:`pappus.client`: the blocking client; :mod:`pappus.aio`: the same for asyncio.
- :mod:`pappus.arena`: shared memory of a caller's own.
- :mod:`pappus.errors`: what can go wrong.
- ``_call``, ``_signature``, ``_sizes``: from arrays to a request, and from an answer to arrays.
- ``_arrays``, ``_numbers``, ``_npy``: what an array may be: the one rule; numbers and files as arrays.
- ``_pool``, ``_memory``: the shared memory that calls use behind the scenes.
- ``_requests``, ``_files``, ``_archive``: every other request; functions on disk.
- ``_opening``, ``_connection``, ``_pending``, ``_wire``: the socket; ``_owner``: the process that it belongs to.
- ``_extras``: packages of others.
- ``_proto``: messages of the protocol, generated.
"""

from pappus._arrays import Array
from pappus._call import Result
from pappus._proto import pappus_pb2 as v1
from pappus._signature import Port
from pappus.arena import Arena
from pappus.client import Call, Client, Function, Session, connect
from pappus.errors import (
    AlreadyExists,
    Cancelled,
    Code,
    ConnectionLost,
    DeadlineExceeded,
    Error,
    Internal,
    InvalidArgument,
    KernelFault,
    NotFound,
    OutOfMemory,
    Overrun,
    PermissionDenied,
    ProtocolError,
    Quarantined,
    ResourceExhausted,
    SessionLost,
    Unavailable,
    Unreachable,
    Unsupported,
    WorkerLost,
)

__version__ = "0.1.0"

__all__ = [
    "AlreadyExists",
    "Arena",
    "Array",
    "Call",
    "Cancelled",
    "Client",
    "Code",
    "ConnectionLost",
    "DeadlineExceeded",
    "Error",
    "Function",
    "Internal",
    "InvalidArgument",
    "KernelFault",
    "NotFound",
    "OutOfMemory",
    "Overrun",
    "PermissionDenied",
    "Port",
    "ProtocolError",
    "Quarantined",
    "ResourceExhausted",
    "Result",
    "Session",
    "SessionLost",
    "Unavailable",
    "Unreachable",
    "Unsupported",
    "WorkerLost",
    "__version__",
    "connect",
    "v1",
]
