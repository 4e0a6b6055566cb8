"""Nested structures of tensors to devices and back, asynchronously."""

from __future__ import annotations

import atexit
import os
import sys
import types

from . import _loader_ring, _transship, multi_tensor_copier
from ._cast import Cast
from ._containers import register_container
from ._copy import Handle, start_copy
from ._files import load_safetensors
from ._into import start_copy_into, start_copy_to_all
from ._loader_ring import LoaderRing
from ._prefetch import Prefetched, prefetch
from ._transship import Error, Tensor, __version__, devices

__all__ = [
    "Cast",
    "Error",
    "Handle",
    "LoaderRing",
    "Prefetched",
    "Tensor",
    "__version__",
    "backend_info",
    "devices",
    "install_as_accvlab",
    "load_safetensors",
    "multi_tensor_copier",
    "prefetch",
    "register_container",
    "start_copy",
    "start_copy_into",
    "start_copy_to_all",
]

_process = os.getpid()


def _close() -> None:
    """Objects that are let go of from now on are leaked, and devices are closed; those of a parent process are its own."""
    if os.getpid() == _process:
        _loader_ring.close()
        _transship.close()


atexit.register(_close)


def backend_info() -> dict:
    """Say which way PyTorch is used: ``{"torch": None}`` as long as the program has not imported it.

    ``read`` is how tensors are read (``"aoti"``: PyTorch 2.11; ``"dlpack exchange api"``: PyTorch 2.10 and newer; ``"attributes"``), ``make`` how
    those of the result are made (``"alloc_from_pool in place"``, ``"alloc_from_pool"``, ``"as_strided"``), ``stream`` how the current stream is asked for. The environment
    variable ``TRANSSHIP_TORCH=slow``, set before the first copy, leaves the fast ways out.
    """
    return {"version": __version__, "torch": _transship.torch_ways()}


def install_as_accvlab() -> types.ModuleType:
    """Put ``transship.multi_tensor_copier`` in the place of ``accvlab.multi_tensor_copier``, for programs that import that.

    Other packages of ``accvlab`` stay what they are. Whoever has imported the name before keeps what he has. Returns the module.
    """
    try:
        import accvlab
    except ImportError:
        accvlab = types.ModuleType("accvlab")
        accvlab.__path__ = []
        sys.modules["accvlab"] = accvlab
    accvlab.multi_tensor_copier = multi_tensor_copier
    sys.modules["accvlab.multi_tensor_copier"] = multi_tensor_copier
    return multi_tensor_copier
