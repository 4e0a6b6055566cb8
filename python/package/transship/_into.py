"""``transship.start_copy_into`` and ``transship.start_copy_to_all``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from . import _transship
from ._cast import lowered
from ._copy import Handle, chosen, converter, converter_of_present, full_name, name_of, number_of, refused_types, switch


def start_copy_into(tree: Any, into: Any, *, cast: Any = None, pinned: bool = True, background: bool = True) -> Handle:
    """Start to copy all tensors of a structure into the memory of another one's, and return at once: nothing is allocated on the
    target, and addresses stay what they are.

    Args:
        tree: the structure to copy, as for ``start_copy``.
        into: a structure with a tensor of the same shape and type at each place where ``tree`` has one: tensors of PyTorch, arrays of
            numpy and whatever else has ``__dlpack__`` and may be written. List items belong together by index, those of mappings by
            key, attributes by name. All lie on one device, which is the target. They may have gaps between their elements, such as
            columns of a matrix, which are left alone, or filled by leaves of the same device without another cast of their type. One that is
            there twice gets what comes last. What is no tensor in ``into`` is not looked at.
        cast: as for ``start_copy``: the types of ``into`` are those that come out.
        pinned: copy through page-locked memory.
        background: let threads of the library stage what is large.

    ``get()`` returns a structure like ``tree`` with the tensors of ``into`` in it, the same objects. Until the copy is done nobody reads
    or writes these, and nobody writes ``tree``. With PyTorch the copy runs on its current streams: behind what was submitted there to
    what it reads and writes, and before what is submitted there once ``get()`` has returned. Without PyTorch it comes
    behind what was submitted to the default stream of the device; what others do there elsewhere has to be done. If the copy fails or
    is cancelled, the contents of ``into`` are anything, and are written no more once this, or ``get()``, has raised. For what autograd has
    saved, the tensors count as changed in place.

    Raises:
        ValueError: the structures differ, or a shape, or a type: the text names the path, such as ``['layers'][3].weight``. A tensor of
            ``into`` must not be written, requires a gradient while PyTorch records, lies on another device than the others, or shares
            memory with one of ``tree``.
        TypeError: a tensor that cannot be copied, or copied into (sparse, quantised, masked, of jax), or cast.
        transship.Error: an integer that its new type cannot hold, tensors of ``into`` that overlap otherwise than as the same one, what the device says.
    """
    pinned, background = switch("pinned", pinned), switch("background", background)
    return Handle(_transship.start_copy_into(tree, into, cast=lowered(cast), pinned=pinned, background=background))


def start_copy_to_all(
    tree: Any,
    devices: Iterable[Any],
    *,
    memory: str | None = None,
    like: str | None = None,
    cast: Any = None,
    packing: bool = True,
    alignment: int = 16,
    max_chunk_bytes: int = 32 << 20,
    pinned: bool = True,
    background: bool = True,
    copy: bool = False,
) -> list[Handle]:
    """Start to copy all tensors of a structure to several devices, and return at once, with a handle for each in their order.

    As ``start_copy`` to each of them, but what lies on the host is read, planned and gathered into page-locked memory once for all. A
    device that is named twice gets two structures. The handles are independent: one that is dropped, cancelled or fails leaves the
    others alone, but for what is still to be staged, which fails with the first device.

    Args:
        tree, cast, packing, alignment, max_chunk_bytes, pinned, background, copy: as for ``start_copy``.
        devices: several of what ``start_copy`` takes as ``device``.
        memory, like: as for ``start_copy``, the same for all devices.

    Raises:
        as ``start_copy``, if the copy to one of the devices cannot be started: then there is none to any.
    """
    if isinstance(devices, str):
        raise TypeError(f"devices={devices!r}; it is a list of devices, such as [{devices!r}]")
    names = [name_of(device) for device in devices]
    asked = like
    memory, like = common_choice(memory, like, names)
    handles = _transship.start_copies(
        tree,
        [full_name(name) for name in names],
        cast=lowered(cast),
        refused=refused_types(like),
        own_memory=memory == "transship",
        convert=None if memory == "torch" else converter(like),
        present=None if asked is None else converter_of_present(like),
        packing=switch("packing", packing),
        alignment=number_of("alignment", alignment),
        max_chunk_bytes=number_of("max_chunk_bytes", max_chunk_bytes),
        pinned=switch("pinned", pinned),
        background=switch("background", background),
        always=switch("copy", copy),
    )
    return [Handle(handle) for handle in handles]


def common_choice(memory: str | None, like: str | None, names: list[str]) -> tuple[str, str]:
    """What results are on all of these devices: arrays of numpy only where all are the host."""
    device = next((name for name in names if name != "cpu"), "cpu")
    return chosen(memory, like, device)
