"""Who may still hand over what was claimed in one iteration over a loader."""

from __future__ import annotations

import os
import weakref
from typing import Any


class Lap:
    """The workers that one iteration starts. They have one end of a pipe, which the system closes when the last of them is gone, however it ends."""

    def __init__(self, owner: int) -> None:
        self.owner = owner
        self._read = -1
        self._read, self.write = os.pipe()
        os.set_blocking(self._read, False)
        self._is_over = False

    def started(self, source: Any) -> bool:
        """The workers are there; ``source`` is what takes their batches in. ``False`` if there are none: those that persist have the end of the
        lap that started them."""
        os.close(self.write)
        if self.is_deserted():
            return False
        try:
            weakref.finalize(source, self.end).atexit = False
        except TypeError:
            # Whether it is still there nobody says: what its workers had when they died stays theirs.
            pass
        return True

    def failed(self) -> None:
        os.close(self.write)
        self.end()

    def end(self) -> None:
        """Nobody takes in what was handed over."""
        self._is_over = True

    def has_ended(self) -> bool:
        """Whether no slot of its workers is written, nor taken in, any more."""
        return self.is_deserted() and self._is_over

    def is_deserted(self) -> bool:
        """Whether all of its workers are gone."""
        try:
            return os.read(self._read, 1) == b""
        except BlockingIOError:
            return False

    def __del__(self) -> None:
        if self._read >= 0:
            os.close(self._read)
