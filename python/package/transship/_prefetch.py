"""``transship.prefetch``."""

from __future__ import annotations

import contextlib
import inspect
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from ._copy import chosen, full_name, name_of, start_copy
from ._loader_ring import Batches

_OPTIONS = [name for name, known in inspect.signature(start_copy).parameters.items() if known.kind is known.KEYWORD_ONLY and name[0] != "_"]


class Prefetched:
    """An iterable whose batches are copied ahead. Made by ``prefetch``; may be iterated over several times, if its source may."""

    def __init__(self, loader: Iterable[Any], device: Any, depth: int, options: dict[str, Any]) -> None:
        if depth < 1:
            raise ValueError(f"depth={depth}; it is at least 1")
        for name in options:
            if name not in _OPTIONS:
                raise TypeError(f"prefetch() has no option {name!r}; there are depth, {', '.join(_OPTIONS)}")
        self._loader = loader
        self._device = full_name(name_of(device))
        self._depth = depth
        self._options = options
        self._stream: Any = None
        self._stats = {"batches": 0, "source_seconds": 0.0, "waited_seconds": 0.0, "consumer_seconds": 0.0}

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def stats(self) -> dict[str, float]:
        """Of all iterations so far: batches handed out, and seconds that the loader took for them (``source_seconds``), that handing
        them out waited for copies (``waited_seconds``), and that the caller worked on them (``consumer_seconds``)."""
        return dict(self._stats)

    def __iter__(self) -> Iterator[Any]:
        source, pending = self._source(), deque()
        is_open = True
        try:
            while True:
                while is_open and len(pending) < self._depth:
                    is_open = self._start_next(source, pending)
                if not pending:
                    return
                # The next one is started before this one is handed out.
                first = pending.popleft()
                if is_open:
                    is_open = self._start_next(source, pending)
                try:
                    batch = self._hand_over(first)
                finally:
                    # An error whose own frames have it would keep itself, the loader and its batches.
                    del first
                self._stats["batches"] += 1
                begin = time.perf_counter()
                yield batch
                self._stats["consumer_seconds"] += time.perf_counter() - begin
                del batch
        finally:
            pending.clear()

    def _source(self) -> Iterator[Any]:
        # A function is shown the leaves, and what is on the host already goes through.
        shows_leaves = self._device.startswith(("cpu", "host")) or callable(self._options.get("cast"))
        if isinstance(self._loader, Batches) and not shows_leaves:
            return self._loader.ahead(self._device)
        return iter(self._loader)

    def _start_next(self, source: Iterator[Any], pending: deque) -> bool:
        """Whether there may be more. An error takes the place of its batch, behind those that came before it."""
        begin = time.perf_counter()
        try:
            batch = next(source)
        except StopIteration:
            return False
        except Exception as error:
            pending.append(error)
            return False
        finally:
            self._stats["source_seconds"] += time.perf_counter() - begin
        try:
            behind = self._stream_of_caller()
            with contextlib.nullcontext() if behind is None else sys.modules["torch"].cuda.stream(self._stream):
                # What the source gave is there in order of the caller's stream. What comes from the host waits for that in no way.
                pending.append(start_copy(batch, self._device, _behind=behind, **self._options))
        except Exception as error:
            pending.append(error)
            return False
        return True

    def _hand_over(self, first: Any) -> Any:
        if isinstance(first, Exception):
            try:
                raise first
            finally:
                del first
        begin = time.perf_counter()
        try:
            if self._stream is None:
                return first.get()
            current = sys.modules["torch"].cuda.current_stream(self._device)
            return first.wait_on(current)
        finally:
            self._stats["waited_seconds"] += time.perf_counter() - begin

    def _stream_of_caller(self) -> int | None:
        """The handle of the caller's stream, if copies run on one of their own. That is one for the life of this object: results lie in
        the part of PyTorch's memory that belongs to it."""
        torch = sys.modules.get("torch")
        memory, _ = chosen(self._options.get("memory"), self._options.get("like"), self._device)
        if torch is None or memory != "torch" or not self._device.startswith("cuda"):
            return None
        if self._stream is None:
            self._stream = torch.cuda.Stream(self._device)
        return torch.cuda.current_stream(self._device).cuda_stream


def prefetch(loader: Iterable[Any], device: Any, depth: int = 2, **options: Any) -> Prefetched:
    """Copy the batches of a loader to a device ahead of their use: ``for batch in transship.prefetch(loader, "cuda:0")``.

    Args:
        loader: any iterable, such as a ``torch.utils.data.DataLoader``; what its workers have in shared memory is read in place. It is
            asked for the next batch on the caller's thread. ``len()`` is passed on.
        device: as for ``start_copy``.
        depth: so many batches are on their way or there while the caller works on another one; at least 1.
        options: as for ``start_copy``.

    Batches keep their order. In PyTorch's memory on a GPU they are copied on a stream of their own, and handed over to the stream that
    is current when the next one is asked for: the host does not wait for them. The loader must not change a batch once it has given
    it out. An exception of the loader, or of a copy, is raised in the place of its batch, and ends the iteration. ``break`` gives up what
    is under way.
    """
    return Prefetched(loader, device, depth, options)
