"""What the workers of a loader do for ``transship.LoaderRing``, and what they send in the place of a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable

from ._slot_batch import Written, is_plain

if TYPE_CHECKING:
    from ._loader_ring import LoaderRing


class Collate:
    """A ``collate_fn`` that leaves batches in slots, where it runs in a worker."""

    def __init__(self, ring: LoaderRing, collate_fn: Callable[[list], Any] | None) -> None:
        self._ring, self._collate_fn = ring, collate_fn
        # Without a batch size PyTorch hands over what the dataset gives: nothing is to be stacked.
        self.takes_samples = True

    def __call__(self, samples: list) -> Any:
        from torch.utils import data

        is_batch = self.takes_samples and isinstance(samples, list)
        collate_fn = self._collate_fn or (data.default_collate if is_batch else data.default_convert)
        if data.get_worker_info() is None:
            return collate_fn(samples)
        return self._ring._fill(self._stacked if collate_fn is data.default_collate else collate_fn, samples)

    def is_of(self, ring: LoaderRing) -> None:
        """An error if it is not."""
        if self._ring is not ring:
            raise ValueError("a loader whose collate_fn is of another LoaderRing: each ring's batches() takes loaders with its own collate()")

    def _stacked(self, samples: list) -> Any:
        """As ``default_collate``, which stacks samples in memory of its own."""
        from torch.utils.data._utils.collate import collate, collate_tensor_fn, default_collate_fn_map

        import torch

        functions = dict(default_collate_fn_map)
        if functions.get(torch.Tensor) is collate_tensor_fn:
            functions[torch.Tensor] = self._stack
        return collate(samples, collate_fn_map=functions)

    def _stack(self, tensors: list, *, collate_fn_map: Any = None) -> Any:
        from torch.utils.data._utils.collate import collate_tensor_fn

        import torch

        first = tensors[0]
        into = self._ring._in_slot((len(tensors), *first.shape), first.dtype) if is_plain(first) else None
        if into is None:
            return collate_tensor_fn(tensors, collate_fn_map=collate_fn_map)
        return torch.stack(tensors, 0, out=into)


class InSlot:
    """A batch on its way: what arrives is the batch."""

    def __init__(self, key: str, handed_over: tuple[int, int], written: Written) -> None:
        self._parts = key, *handed_over, *written

    def __reduce__(self) -> tuple:
        return _take_in, self._parts


class Beside:
    """The same for one that found no slot, and goes by PyTorch's own way."""

    def __init__(self, key: str, batch: Any) -> None:
        self._parts = key, batch

    def __reduce__(self) -> tuple:
        return _let_through, self._parts


def _take_in(key: str, slot: int, claim: int, *written: Any) -> Any:
    from ._loader_ring import ring_of

    return ring_of(key)._take_in(slot, claim, Written(*written))


def _let_through(key: str, batch: Any) -> Any:
    from ._loader_ring import ring_of

    return ring_of(key)._let_through(batch)
