"""The interface of NVIDIA's ``accvlab.multi_tensor_copier``: change the import, and nothing else.

What differs: inputs may be changed as soon as the copy is done and not before, as there; results that are small and come from a
device share storages as well; dropping the handle does not wait, and what is in flight stays owned until it is done.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from . import _transship
from ._transship import __version__

__all__ = ["AsyncCopyHandle", "__version__", "start_copy"]


@dataclass
class AsyncCopyHandle:
    """A copy that was started."""

    _h: Any

    def ready(self) -> bool:
        """Say whether the copy is done, or has failed. Does not block."""
        return self._h.ready()

    def get(self) -> Any:
        """Wait for the copy, and return the structure with its tensors on the device.

        Lists, tuples and dicts are new each time; tensors are the same ones.

        Raises:
            RuntimeError: the copy has failed.
        """
        return self._h.get()


def start_copy(
    data: Any,
    device: Any,
    *,
    use_pinned_staging: bool = True,
    pack_cpu_tensors: bool = True,
    min_packed_alignment_bytes: int = 16,
    max_packed_chunk_bytes: int = 32 * 1024 * 1024,
    use_background_thread: bool = True,
    max_h2d_transfer_chunk_bytes: int = 0,
) -> AsyncCopyHandle:
    """Start to copy the tensors of a structure to a device, and return at once.

    Args:
        data: lists, tuples and dicts, nested, or a leaf. Tensors of PyTorch and arrays of numpy are copied; whatever else there is
            goes through as it is, and so does what is on the device already. Subclasses of containers come back as plain ones, and
            copies of masked arrays have no mask.
        device: a ``str`` or ``torch.device``.
        use_pinned_staging: copy through pinned memory, and into pinned memory on the way to the host.
        pack_cpu_tensors: let tensors of 1 byte to 256 KiB share storages.
        min_packed_alignment_bytes: the least alignment of a packed tensor in its storage, rounded up to a multiple of the size of
            its elements. Any number; below 1 counts as 1.
        max_packed_chunk_bytes: the largest storage that several tensors share. Below 1 counts as 1.
        use_background_thread: let threads stage what is large.
        max_h2d_transfer_chunk_bytes: accepted, and without effect: large tensors are cut into pieces anyway.

    The caller neither changes nor frees the inputs before the copy is done. It runs on PyTorch's current streams, behind what was
    submitted to them before.

    Raises:
        RuntimeError: the device is none, or the copy cannot be started.
        TypeError: an array of a type that PyTorch does not have.
    """
    del max_h2d_transfer_chunk_bytes
    handle = _transship.start_copy_as_forebear(
        data,
        device,
        use_pinned_staging=bool(use_pinned_staging),
        pack_cpu_tensors=bool(pack_cpu_tensors),
        min_packed_alignment_bytes=_clamped(min_packed_alignment_bytes),
        max_packed_chunk_bytes=_clamped(max_packed_chunk_bytes),
        use_background_thread=bool(use_background_thread),
    )
    return AsyncCopyHandle(handle)


def _clamped(number: int) -> int:
    return max(1, min(number, 2**63 - 1))
