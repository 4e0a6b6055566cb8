"""A batch in a slot: how a worker writes one there, and what the trainer reads it by."""

from __future__ import annotations

import ctypes
import io
import pickle
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

# Where tensors begin in their slot: a multiple of so many bytes.
_ALIGNMENT = 64


class Written(NamedTuple):
    """What the trainer needs beside the slot."""

    leaves: list[tuple]
    """For each tensor in the slot its type, sizes, strides and offset; the last two in elements."""
    content: bytes
    """All else: a pickle in which tensors of the slot are numbers."""
    needed: int
    """Bytes that all of its tensors would have taken."""
    beside: int
    """Tensors that are in the pickle: those that are not plain, and those that found no room."""


class SlotWriter:
    """A slot while a worker writes a batch there."""

    def __init__(self, address: int, size: int, keeper: Any) -> None:
        self._base = tensor_over(address, size, keeper)
        self._size = size
        self._end = 0
        self._needed = 0
        self._typed: dict[Any, Any] = {}

    def empty(self, shape: tuple[int, ...], dtype: Any, strides: tuple[int, ...] | None = None) -> Any:
        """A tensor in the slot; ``None`` if it has no room. ``strides`` are of one that has no gaps."""
        import torch

        count = 1
        for size in shape:
            count *= size
        begin = -(-self._end // _ALIGNMENT) * _ALIGNMENT
        end = begin + count * dtype.itemsize
        if end > self._size:
            return None
        self._end = end
        return torch.as_strided(self._of_type(dtype), shape, strides or row_major(shape), begin // dtype.itemsize)

    def write(self, batch: Any) -> Written:
        """Puts the tensors of a batch there that are not there yet."""
        file = io.BytesIO()
        pickler = _Pickler(file, self)
        pickler.dump(batch)
        return Written(pickler.leaves, file.getvalue(), max(self._needed, self._end), pickler.beside)

    def place(self, tensor: Any) -> tuple | None:
        """Where a tensor lies in the slot, once it does; ``None`` if it cannot."""
        if not is_plain(tensor):
            return None
        self._needed = -(-self._needed // _ALIGNMENT) * _ALIGNMENT + tensor.nbytes
        if tensor.untyped_storage().data_ptr() != self._base.data_ptr():
            there = self.empty(tuple(tensor.shape), tensor.dtype, _dense_strides(tensor))
            if there is None:
                return None
            tensor = there.copy_(tensor)
        return tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.storage_offset()

    def _of_type(self, dtype: Any) -> Any:
        if dtype not in self._typed:
            self._typed[dtype] = self._base.view(dtype)
        return self._typed[dtype]


class _Pickler(ForkingPickler):
    """Writes as PyTorch does what crosses between processes, but for tensors that are put into a slot."""

    def __init__(self, file: io.BytesIO, slot: SlotWriter) -> None:
        import torch

        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.leaves: list[tuple] = []
        self.beside = 0
        self._class, self._slot = torch.Tensor, slot
        self._numbers: dict[int, int | None] = {}

    def persistent_id(self, obj: Any) -> int | None:
        if not isinstance(obj, self._class):
            return None
        # The batch keeps them all, so that no two have the same identity.
        if id(obj) not in self._numbers:
            leaf = self._slot.place(obj)
            if leaf is None:
                self.beside += 1
            else:
                self.leaves.append(leaf)
            self._numbers[id(obj)] = None if leaf is None else len(self.leaves) - 1
        return self._numbers[id(obj)]


class _Unpickler(pickle.Unpickler):
    def __init__(self, content: bytes, tensors: list[Any]) -> None:
        super().__init__(io.BytesIO(content))
        self._tensors = tensors

    def persistent_load(self, number: int) -> Any:
        return self._tensors[number]


def read(written: Written, address: int, size: int, keeper: Any) -> Any:
    """The batch over the memory of its slot, which ``keeper`` keeps until the last tensor has gone."""
    import torch

    tensors, typed = [], {}
    if written.leaves:
        base = tensor_over(address, size, keeper)
        for dtype, shape, strides, offset in written.leaves:
            if dtype not in typed:
                typed[dtype] = base.view(dtype)
            tensors.append(torch.as_strided(typed[dtype], shape, strides, offset))
    return _Unpickler(written.content, tensors).load()


def tensor_over(address: int, size: int, keeper: Any) -> Any:
    """Bytes as a tensor of PyTorch, which keeps ``keeper``."""
    import torch

    memory = (ctypes.c_uint8 * size).from_address(address)
    memory.keeper = keeper
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


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, stride = [], 1
    for size in reversed(shape):
        strides.append(stride)
        stride *= max(size, 1)
    return tuple(reversed(strides))


def _dense_strides(tensor: Any) -> tuple[int, ...]:
    """Its own, if it has no gaps; else such as its copy would have."""
    import torch

    return tensor.stride() if tensor.is_contiguous() else torch.empty_like(tensor, device="meta").stride()
