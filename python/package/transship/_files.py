"""``transship.load_safetensors``."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from . import _transship
from ._copy import chosen, converter, full_name, name_of


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
        device: such as ``"cuda:0"`` or ``"cpu"``, a ``torch.device``, or the number of a device of CUDA.
        like: what tensors come back as, as for ``start_copy``.
        names: only these, each of which is in one of the files; all by default.

    Raises:
        TypeError: names that are a single ``str``.
        ValueError: names that are in none of the files.
        transship.Error: a file that is none, or changes meanwhile; what the device says.
    """
    name = name_of(device)
    _, like = chosen("transship", like, name)
    files = [paths] if isinstance(paths, (str, bytes, os.PathLike)) else paths
    if isinstance(names, (str, bytes)):
        raise TypeError(f"names={names!r}; it is a list of names, such as [{names!r}]")
    wanted = None if names is None else set(names)
    loaded = _transship.load_safetensors(
        [os.fsdecode(file) for file in files], full_name(name), convert=converter(like), names=wanted
    )
    unknown = [] if wanted is None else sorted(wanted.difference(loaded))
    if unknown:
        raise ValueError(f"names that are in none of the files: {', '.join(map(repr, unknown))}")
    return loaded
