"""``transship.load_safetensors``."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from . import _transship
from ._copy import chosen, converter, full_name


def load_safetensors(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    device: Any,
    *,
    like: str | None = None,
    names: Iterable[str] | None = None,
) -> dict[str, Any]:
    """Load ``.safetensors`` files to a device, and return a dict of their tensors, in memory of this library.

    Threads read the files into pinned blocks while the device copies out of others; no file lies in host memory as a whole. Blocks
    until all is there, without the GIL; Ctrl-C is noticed then.

    Args:
        paths: a file, or several, such as the shards of a model.
        device: such as ``"cuda:0"`` or ``"cpu"``, or a ``torch.device``.
        like: what tensors come back as, as for ``start_copy``.
        names: only these; all by default.

    Raises:
        transship.Error: a file that is none, or changes meanwhile; what the device says.
    """
    name = device if isinstance(device, str) else str(device)
    _, like = chosen("transship", like, name)
    files = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    wanted = None if names is None else set(names)
    return _transship.load_safetensors(files, full_name(name), convert=converter(like), names=wanted)
