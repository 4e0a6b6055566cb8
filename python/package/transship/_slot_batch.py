"""A batch in a slot: how a worker writes one there, and what the trainer reads it by."""

from __future__ import annotations

import ctypes
import io
import math
import pickle
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

from . import _transship


class Written(NamedTuple):
    """What the trainer needs beside the slot."""

    leaves: bytes
    """The tensors and arrays in the slot, as ``SlotPacker`` describes them."""
    content: bytes
    """All else: a pickle that calls ``leaf`` in the place of each of these, with its number."""
    needed: int
    """Bytes that all of them would have taken."""
    beside: int
    """Tensors and arrays that are in the pickle: those that are not plain, and those that found no room."""
    runs_no_code: bool
    """Whether unpickling runs no code of the program."""


class SlotWriter:
    """A slot while a worker writes a batch there."""

    def __init__(self, address: int, size: int, keeper: Any) -> None:
        self._packer = _transship.SlotPacker(address, size, leaf, keeper)
        self._memory = memory_of(address, size, keeper)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """A tensor in the slot; ``None`` if it has no room."""
        import torch

        count = math.prod(shape)
        begin = self._packer.reserve(count * dtype.itemsize) if count else None
        if begin is None:
            return None
        # Its storage ends where it does: one that PyTorch made larger would reach into what comes next.
        return torch.frombuffer(self._memory, dtype=dtype, count=count, offset=begin).view(shape)

    def write(self, batch: Any) -> Written:
        """Puts the tensors and arrays of a batch there that are not there yet."""
        file = io.BytesIO()
        # It writes as PyTorch does what crosses between processes, but for what the packer takes.
        pickler = _Pickler(file, pickle.HIGHEST_PROTOCOL)
        pickler.reducer_override = self._packer.reduce
        pickler.dump(batch)
        leaves, needed, beside, runs_no_code = self._packer.finish()
        return Written(leaves, file.getvalue(), needed, beside, runs_no_code)


class _Pickler(ForkingPickler):
    reducer_override: Any


class _Unpickler(pickle.Unpickler):
    def __init__(self, content: bytes, leaves: list[Any]) -> None:
        super().__init__(io.BytesIO(content))
        self._leaf = leaves.__getitem__

    def find_class(self, module: str, name: str) -> Any:
        return self._leaf if (module, name) == _LEAF else super().find_class(module, name)


def leaf(number: int) -> Any:
    """What stands in pickles; ``_Unpickler`` has something else for it."""
    raise _transship.Error("a batch of a LoaderRing that was unpickled by somebody else")


_LEAF = leaf.__module__, leaf.__qualname__


def read(written: Written, lease: _transship.SlotLease, size: int) -> Any:
    """The batch over the memory of its slot, which the last tensor and array over it gives back."""
    leaves: list[Any] = []
    if written.leaves:
        memory = memory_of(lease.address, size, lease)
        leaves = lease.leaves(written.leaves, tensor_over(memory), memory)
    return _Unpickler(written.content, leaves).load()


def read_for_copies(written: Written, lease: _transship.SlotLease, size: int) -> Any:
    """The batch for ``start_copy`` alone, which gives the slot back when the copy is done. As ``read`` where somebody else would see its leaves."""
    if written.runs_no_code:
        batch = _Unpickler(written.content, lease.for_copies(written.leaves)).load()
        if lease.are_found(batch):
            return batch
    return read(written, lease, size)


def memory_of(address: int, size: int, keeper: Any) -> Any:
    """Bytes as a buffer, which keeps ``keeper``."""
    memory = (ctypes.c_uint8 * size).from_address(address)
    memory.keeper = keeper
    return memory


def tensor_over(memory: Any) -> Any:
    """A buffer as a tensor of bytes."""
    import torch

    return torch.frombuffer(memory, dtype=torch.uint8)


def is_plain(tensor: Any) -> bool:
    """Whether a tensor is nothing but elements in memory of the host."""
    import torch

    return (
        type(tensor) is torch.Tensor
        and tensor.layout == torch.strided
        and tensor.device.type == "cpu"
        and not (tensor.requires_grad or tensor.is_quantized or tensor.is_nested or tensor.is_conj() or tensor.is_neg())
        and not tensor.__dict__
    )
