"""``transship.LoaderRing``."""

from __future__ import annotations

import itertools
import os
import sys
import threading
import warnings
import weakref
from collections.abc import Iterable, Iterator
from typing import Any, Callable, NamedTuple

from . import _slot_batch, _transship
from ._copy import full_name, name_of, number_of
from ._lap import Lap
from ._ring_collate import Beside, Collate, InSlot

# What the trainer has beside what its loader has made ahead: copies that run, and batches that it works on.
_HELD_BY_THE_TRAINER = 4

_rings: weakref.WeakValueDictionary[str, LoaderRing] = weakref.WeakValueDictionary()
_numbers = itertools.count()


class LoaderRing:
    """Page-locked memory that the workers of a ``DataLoader`` write their batches to, and a GPU copies from.

    ::

        ring = transship.LoaderRing(64 << 20, device="cuda:0")
        loader = DataLoader(dataset, batch_size=256, num_workers=4, collate_fn=ring.collate())
        for batch in transship.prefetch(ring.batches(loader), "cuda:0"):
            train(batch)

    Args:
        slot_bytes: room for the tensors and arrays of one batch, each of which begins at a multiple of 16 bytes, and of 64 if it has more than 256 KiB.
        slots: how many batches there may be, from when a worker begins to write one until the last tensor over it has gone. By default
            ``num_workers * prefetch_factor + 4`` of the first loader: what that makes ahead, and 4 that are copied or worked on.
        device: that the memory is page-locked for when the first batches are asked for; by default that of ``prefetch``. With ``"cpu"``, and where
            batches are not asked for by ``prefetch``, it is ordinary memory.

    PyTorch hands out the indices and says in which order batches come: samplers, seeds, errors and workers that die are its own. A batch that finds no
    free slot, a tensor that does not fit into the slot, and what is more than elements on the host (tensors that are sparse, quantised, of a class of
    their own or with a gradient; arrays of objects, texts and dates, and those of a class of their own, as ``numpy.memmap``) go by PyTorch's own way: ``stats`` counts them, and the first two are warned of. Linux only. One ring is for one loader; where several share it, give ``slots``.
    """

    def __init__(self, slot_bytes: int, *, slots: int | None = None, device: Any = None) -> None:
        if not hasattr(_transship, "Slots"):
            raise NotImplementedError("memory that processes share in this way is there on Linux only")
        if slots is not None and slots < 1:
            raise ValueError(f"slots={slots}; there is at least 1")
        self._slot_bytes = number_of("slot_bytes", slot_bytes)
        self._wanted = slots
        self._device = None if device is None else full_name(name_of(device))
        self._key = f"{os.getpid()}-{next(_numbers)}"
        _rings[self._key] = self
        self._slots: _transship.Slots | None = None
        self._worker: _Worker | None = None
        self._local = threading.local()
        # Of what stands below. Nothing of the program's runs under it.
        self._lock = threading.Lock()
        self._laps: list[Lap] = []
        self._owners = itertools.count(1)
        self._warned: set[str] = set()
        self._counts = {"batches": 0, "batches_beside": 0, "tensors_beside": 0, "largest_batch_bytes": 0}

    def __reduce__(self) -> tuple:
        """As a worker gets it that is not forked but started."""
        from multiprocessing import context, reduction

        if context.get_spawning_popen() is None:
            raise TypeError("a LoaderRing is pickled where the worker of a loader is started, and nowhere else")
        lap = getattr(self._local, "lap", None)
        if self._slots is None or lap is None:
            return _without_slots, (self._slot_bytes,)
        descriptors = reduction.DupFd(self._slots.fileno()), reduction.DupFd(lap.write)
        return _in_worker, (self._key, lap.owner, self._slots.slot_bytes, self._slots.slots, *descriptors)

    def collate(self, collate_fn: Callable[[list], Any] | None = None) -> Callable[[list], Any]:
        """Wrap the ``collate_fn`` of a loader, by default PyTorch's own, which then stacks samples in their slot. What others return is copied there,
        unless they have written it to ``empty``."""
        return Collate(self, collate_fn)

    def empty(self, shape: Iterable[int], dtype: Any) -> Any:
        """Make a tensor of any bytes in the slot of the batch that a worker collates, for a ``collate_fn`` to fill. Elsewhere, and where the slot has
        no room, it is an ordinary one. It is for that batch: one that is kept, and filled again, writes to a batch that was handed over."""
        import torch

        there = self._in_slot(shape := tuple(shape), dtype)
        return torch.empty(shape, dtype=dtype) if there is None else there

    def batches(self, loader: Iterable[Any]) -> Iterable[Any]:
        """Iterate over a loader whose ``collate_fn`` is this ring's. Its batches are to be read, and not written: they lie in slots, and a slot is
        written anew once the last tensor over it has gone. ``len()`` is passed on."""
        return Batches(self, loader)

    def stats(self) -> dict[str, int]:
        """Of all loaders so far: batches that came in slots (``batches``), that found no slot (``batches_beside``), tensors that batches with a slot had
        beside it (``tensors_beside``), and how large a slot must be for the largest batch that had one (``largest_batch_bytes``). And ``slots``,
        those that nobody has now (``free_slots``), and whether they are page-locked (``page_locked``)."""
        self._take_back()
        slots = self._slots
        with self._lock:
            counts = dict(self._counts)
        counts["slots"] = slots.slots if slots else 0
        counts["free_slots"] = slots.free() if slots else 0
        counts["page_locked"] = bool(slots and slots.is_page_locked())
        return counts

    def _in_slot(self, shape: tuple[int, ...], dtype: Any) -> Any:
        slot = getattr(self._local, "slot", None)
        return None if slot is None else slot.empty(shape, dtype)

    def _iterate(self, loader: Iterable[Any], device: str | None) -> Iterator[Any]:
        """Starts the workers of a loader, which take with them what they need: by way of this thread."""
        self._check(loader)
        self._make_slots(loader)
        self._take_back()
        if self._slots is None:
            return iter(loader)
        lap = self._local.lap = Lap(next(self._owners))
        try:
            source = iter(loader)
        except BaseException:
            lap.failed()
            raise
        finally:
            self._local.lap = None
        if lap.started(source):
            with self._lock:
                self._laps.append(lap)
        device = self._device or device
        if device is not None and not device.startswith(("cpu", "host")):
            self._slots.page_lock(device)
        return source

    def _check(self, loader: Iterable[Any]) -> None:
        """What would go by PyTorch's own way unnoticed."""
        data = sys.modules.get("torch.utils.data")
        collate_fn = getattr(loader, "collate_fn", None)
        if isinstance(collate_fn, Collate):
            collate_fn.is_of(self)
            collate_fn.takes_samples = getattr(loader, "batch_sampler", True) is not None
        elif data is not None and collate_fn in (data.default_collate, data.default_convert) and getattr(loader, "num_workers", 0):
            raise ValueError("a loader without this ring's collate_fn: DataLoader(..., collate_fn=ring.collate()), or ring.collate(FUNCTION) for one of yours")

    def _make_slots(self, loader: Iterable[Any]) -> None:
        workers = getattr(loader, "num_workers", 0)
        count = self._wanted or workers * (getattr(loader, "prefetch_factor", None) or 2) + _HELD_BY_THE_TRAINER
        with self._lock:
            if self._slots is None and workers:
                self._slots = _transship.Slots(self._slot_bytes, count)

    def _take_back(self) -> None:
        """Slots that nobody hands over any more: those of workers that were killed, and of batches that were never asked for."""
        with self._lock:
            ended = [lap for lap in self._laps if lap.has_ended()]
            self._laps = [lap for lap in self._laps if lap not in ended]
        for lap in ended:
            self._slots.take_back(lap.owner)

    def _fill(self, collate_fn: Callable[[list], Any], samples: list) -> Any:
        """In a worker: collates a batch into a slot."""
        worker = self._of_this_worker()
        if worker is None:
            return collate_fn(samples)
        claimed = worker.filler.claim(worker.owner)
        if claimed is None:
            return Beside(self._key, collate_fn(samples))
        self._local.slot = slot = _slot_batch.SlotWriter(claimed.address, worker.slot_bytes, worker.filler)
        try:
            written = slot.write(collate_fn(samples))
        except BaseException:
            claimed.give_up()
            raise
        finally:
            self._local.slot = None
        return InSlot(self._key, claimed.hand_over(), written)

    def _of_this_worker(self) -> _Worker | None:
        """``None`` in one that was started by nobody who takes slots in."""
        lap = getattr(self._local, "lap", None)
        if self._worker is None and lap is not None and self._slots is not None:
            # It was forked, in the thread that has begun the lap.
            self._worker = _Worker.of(self._slots.fileno(), lap.owner, self._slots.slot_bytes, self._slots.slots)
        return self._worker

    def _take_in(self, slot: int, claim: int, written: _slot_batch.Written) -> Any:
        """In the trainer: what a worker has written, as tensors over it."""
        lease = self._slots.lease(slot, claim) if self._slots else None
        if lease is None:
            raise _transship.Error("a batch of a loader has come twice, or after its loader had gone")
        self._count(batches=1, tensors_beside=written.beside, largest_batch_bytes=written.needed)
        if written.needed > self._slots.slot_bytes:
            self._warn(
                "size",
                f"a batch of {written.needed} bytes for slots of {self._slots.slot_bytes}: tensors that have no room go by PyTorch's own way, which is slow; "
                f"LoaderRing({written.needed}) has room for it",
            )
        if getattr(self._local, "for_copies", False):
            return _slot_batch.read_for_copies(written, lease, self._slots.slot_bytes)
        return _slot_batch.read(written, lease, self._slots.slot_bytes)

    def _let_through(self, batch: Any) -> Any:
        self._count(batches_beside=1)
        slots = self._slots.slots if self._slots else 0
        self._warn(
            "slots",
            f"a batch found none of the {slots} slots free, and went by PyTorch's own way, which is slow: a batch has its slot until the last tensor over it "
            f"has gone; keep fewer of them, or give more, LoaderRing(..., slots={2 * slots})",
        )
        return batch

    def _warn(self, kind: str, text: str) -> None:
        """Of each kind once."""
        with self._lock:
            is_new = kind not in self._warned
            self._warned.add(kind)
        if is_new:
            warnings.warn(text, RuntimeWarning, stacklevel=2)

    def _count(self, largest_batch_bytes: int = 0, **more: int) -> None:
        with self._lock:
            for name, count in more.items():
                self._counts[name] += count
            self._counts["largest_batch_bytes"] = max(self._counts["largest_batch_bytes"], largest_batch_bytes)


class _Worker(NamedTuple):
    """What a worker fills slots by."""

    owner: int
    filler: _transship.SlotFiller
    slot_bytes: int
    lap: int | None
    """Its end of the pipe of its lap, which stays open as long as the process is there."""

    @classmethod
    def of(cls, descriptor: int, owner: int, slot_bytes: int, slots: int, lap: int | None = None) -> _Worker:
        return cls(owner, _transship.SlotFiller(descriptor, slot_bytes, slots), slot_bytes, lap)


class Batches:
    """What ``LoaderRing.batches`` returns."""

    def __init__(self, ring: LoaderRing, loader: Iterable[Any]) -> None:
        self._ring, self._loader = ring, loader

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        # Its own iterator, and no generator: it goes on behind an error, and keeps no batch.
        return self._ring._iterate(self._loader, None)

    def ahead(self, device: str | None = None) -> Iterator[Any]:
        """The same for ``prefetch``: of a batch that holds nothing but tensors, arrays and what Python brings along, only ``start_copy`` can
        do something with the leaves. A copy to a device makes what they become out of its own memory. For that device slots are page-locked, if the
        ring was not given one."""
        source = self._ring._iterate(self._loader, device)
        # What a loader of the program does with its batches, it does with tensors.
        return _ForCopies(source, self._ring._local) if _is_of_pytorch(source) else source


class _ForCopies:
    """Says to whoever takes a batch in on this thread what it is for."""

    def __init__(self, source: Iterator[Any], local: threading.local) -> None:
        self._source, self._local = source, local

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self._local.for_copies = True
        try:
            return next(self._source)
        finally:
            self._local.for_copies = False


def _is_of_pytorch(source: Iterator[Any]) -> bool:
    from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

    return type(source) is _MultiProcessingDataLoaderIter


def ring_of(key: str) -> LoaderRing:
    """The ring of this process that a batch is for."""
    ring = _rings.get(key)
    if ring is None:
        raise _transship.Error("a batch of a LoaderRing has come to a process that does not have it, or had it")
    return ring


def close() -> None:
    """The interpreter ends: slots that no tensor lies in are unlocked while there is a device."""
    for ring in list(_rings.values()):
        ring._slots = None


def _without_slots(slot_bytes: int) -> LoaderRing:
    return LoaderRing(slot_bytes)


def _in_worker(key: str, owner: int, slot_bytes: int, slots: int, memory: Any, lap: Any) -> LoaderRing:
    ring, memory, lap = LoaderRing(slot_bytes), memory.detach(), lap.detach()
    os.set_inheritable(lap, False)
    try:
        ring._key, ring._worker = key, _Worker.of(memory, owner, slot_bytes, slots, lap)
    finally:
        os.close(memory)
    return ring
