"""Lends buffers of a running program to the host, which reads arguments and leaves results in them; for XLA on the CPU.

A JAX callback gets copies of its arguments, and its results are copied, both into fresh memory whose page faults cost several
times as much as a copy. XLA's foreign function interface lends a program's own buffers instead. Its C structures are
documented and stable (``xla/ffi/api/c_api.h`` in :func:`jax.ffi.include_dir`); ctypes declares the parts that are needed here.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import logging
import math
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax
import torch
from torch import Tensor

from grace.errors import GraceError, InputError
from grace.jax.places import GLOBAL_ARRAYS

# Of jax.ffi.ffi_call: (ticket, *arrays) -> (ticket, *arrays), arrays in the same memory.
TARGET = "grace_exchange_in_place"
_METADATA = 1  # the extension that asks which version of the interface a handler is written for
_INTERNAL = 13  # the code of an error
_RELEASE_SECONDS = 5.0  # time for a backend's threads to let go of what they have sent
_MAJOR = 0  # of the interface whose structures are below

Receive = Callable[[list[int]], None]
_expected: dict[int, Receive] = {}  # the function that takes the buffers of a ticket
_tickets = itertools.count(1)


@functools.cache
def can_lend() -> bool:
    """True if programs run on the CPU, by an XLA that knows this interface. Registers the target."""
    if jax.default_backend() != "cpu":  # this starts the backend, so that a target it refuses is refused here
        return False
    try:
        jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(_handle), platform="cpu", api_version=1)
    except Exception as error:
        logging.getLogger("grace").warning("XLA lends no buffers, and gradients are copied instead: %s", error)
        return False
    return True


def expect(receive: Receive) -> int:
    """Issues a ticket. The call of the target that brings it gives ``receive`` the addresses of its arrays."""
    ticket = next(_tickets)
    _expected[ticket] = receive
    return ticket


def run_in_place(
    exchange: Callable[[list[Tensor]], Sequence[Tensor]],
    shapes: Sequence[tuple[int, ...]],
    dtypes: Sequence[torch.dtype],
    addresses: Sequence[int],
) -> None:
    """Runs ``exchange(tensors)`` on the memory at these addresses, and leaves its answers there.

    Raises:
        InputError: an answer of another shape or dtype, or another number of them.
        GraceError: it has kept a tensor, whose memory is XLA's.
    """
    owners: list[weakref.ref[Any]] = []
    _run(exchange, [_view(*kind, owners) for kind in zip(shapes, dtypes, addresses, strict=True)])
    until = time.monotonic() + _RELEASE_SECONDS
    while any(owner() is not None for owner in owners):
        if time.monotonic() > until:
            raise GraceError("the exchange has kept a tensor that was lent to it, whose memory XLA uses again: copy it")
        time.sleep(1e-4)


def _run(exchange: Callable[[list[Tensor]], Sequence[Tensor]], tensors: list[Tensor]) -> None:
    answers = list(exchange(tensors))
    if len(answers) != len(tensors):
        raise InputError(f"{len(answers)} answers for {len(tensors)} arrays")
    lent = {x.untyped_storage().data_ptr() for x in tensors if x.numel()}
    for i, (answer, x) in enumerate(zip(answers, tensors, strict=True)):
        if answer.shape != x.shape or answer.dtype != x.dtype:
            raise InputError(
                f"answer {i} is {answer.dtype} {tuple(answer.shape)}, and the array {x.dtype} {tuple(x.shape)}"
            )
        if not _is_same(answer, x) and answer.untyped_storage().data_ptr() in lent:
            answers[i] = answer.clone()  # before another answer is written there
    for answer, x in zip(answers, tensors, strict=True):
        if not _is_same(answer, x):
            x.copy_(answer.detach())


def _is_same(a: Tensor, b: Tensor) -> bool:
    return a.data_ptr() == b.data_ptr() and a.stride() == b.stride()


def _view(shape: tuple[int, ...], dtype: torch.dtype, address: int, owners: list[weakref.ref[Any]]) -> Tensor:
    """A tensor over the memory at this address; the object that lives as long as the tensor joins ``owners``."""
    count = math.prod(shape) * dtype.itemsize
    if not count:
        return torch.empty(shape, dtype=dtype, device="cpu")
    memory = (ctypes.c_char * count).from_address(address)
    owners.append(weakref.ref(memory))
    return torch.frombuffer(memory, dtype=dtype).view(shape)


class _Extension(ctypes.Structure):
    _fields_ = (("size", ctypes.c_size_t), ("type", ctypes.c_int), ("next", ctypes.c_void_p))


class _Version(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_size_t),
        ("extension", ctypes.c_void_p),
        ("major", ctypes.c_int),
        ("minor", ctypes.c_int),
    )


class _Metadata(ctypes.Structure):
    _fields_ = (("size", ctypes.c_size_t), ("version", _Version), ("traits", ctypes.c_uint32))


class _MetadataExtension(ctypes.Structure):
    _fields_ = (("base", _Extension), ("metadata", ctypes.POINTER(_Metadata)))


class _ErrorArgs(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_size_t),
        ("extension", ctypes.c_void_p),
        ("message", ctypes.c_char_p),
        ("code", ctypes.c_int),
    )


_CreateError = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(_ErrorArgs))


class _Api(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_size_t),
        ("extension", ctypes.c_void_p),
        ("version", _Version),
        ("internal", ctypes.c_void_p),
        ("create_error", _CreateError),
    )


class _LentBuffer(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_size_t),
        ("extension", ctypes.c_void_p),
        ("dtype", ctypes.c_int),
        ("data", ctypes.c_void_p),
        ("rank", ctypes.c_int64),
        ("dims", ctypes.POINTER(ctypes.c_int64)),
    )


class _Buffers(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_size_t),
        ("extension", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("types", ctypes.c_void_p),
        ("buffers", ctypes.POINTER(ctypes.POINTER(_LentBuffer))),
    )

    def addresses(self) -> list[int]:
        return [self.buffers[i].contents.data or 0 for i in range(self.count)]


class _Frame(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_size_t),
        ("extension", ctypes.POINTER(_Extension)),
        ("api", ctypes.POINTER(_Api)),
        ("context", ctypes.c_void_p),
        ("stage", ctypes.c_int),
        ("args", _Buffers),
        ("results", _Buffers),
    )


def _answer(pointer: Any) -> int | None:
    """XLA calls this: for the version when it is registered, then in each run of a program. None is success."""
    frame = pointer.contents
    try:
        if frame.extension and frame.extension.contents.type == _METADATA:
            asked = ctypes.cast(frame.extension, ctypes.POINTER(_MetadataExtension)).contents.metadata.contents.version
            asked.major, asked.minor = _MAJOR, frame.api.contents.version.minor  # minor ones only add
            return None
        ticket, *given = frame.args.addresses()
        done, *results = frame.results.addresses()
        number = ctypes.c_int32.from_address(ticket).value
        receive = _expected.pop(number, None)
        if receive is None or given != results:
            raise GraceError(f"XLA asks for an exchange that was not announced in this process: {GLOBAL_ARRAYS}")
        receive(results)
        ctypes.c_int32.from_address(done).value = number
    except BaseException as error:
        text = f"{type(error).__name__}: {error}".encode()
        args = _ErrorArgs(_ErrorArgs.code.offset + _ErrorArgs.code.size, None, text, _INTERNAL)
        failure: int | None = frame.api.contents.create_error(ctypes.byref(args))
        return failure
    return None


_handle = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(_Frame))(_answer)  # for as long as the process lives
