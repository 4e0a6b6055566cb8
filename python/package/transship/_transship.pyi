"""The part that is written in Rust. Use ``transship``."""

from typing import Any, Callable

__version__: str

class Error(RuntimeError):
    """What made a copy fail. Its text says what can be done."""

    kind: str
    """What is wrong: "InvalidInput", "OutOfMemory", "DeviceLost", "Cancelled" and others."""

class Tensor:
    """A tensor in memory of transship. ``numpy.from_dlpack``, ``torch.from_dlpack`` and others take it without a copy."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def strides(self) -> tuple[int, ...]:
        """From one element to the next along each dimension, in elements."""
    @property
    def dtype(self) -> str:
        """The name of the element type, such as "float32"."""
    @property
    def device(self) -> str:
        """The device, such as "cuda:0"; "host" for memory of the host."""
    @property
    def nbytes(self) -> int: ...
    def bits(self) -> Tensor:
        """Its memory as unsigned integers of the size of its elements, for libraries that do not have their type."""
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """``stream`` is a stream of the consumer's, as DLPack numbers them: it waits for what fills the tensor, and the memory is not used again
        before it has come by. It must not be destroyed before the last reference to the tensor, and to what was made of it, is gone."""

class Slots:
    """Memory that workers of loaders fill; on Linux."""

    def __init__(self, slot_bytes: int, slots: int) -> None: ...
    @property
    def slot_bytes(self) -> int: ...
    @property
    def slots(self) -> int: ...
    def fileno(self) -> int: ...
    def free(self) -> int: ...
    def page_lock(self, device: str) -> None: ...
    def is_page_locked(self) -> bool: ...
    def lease(self, slot: int, claim: int) -> SlotLease | None: ...
    def take_back(self, owner: int) -> int: ...

class SlotLease:
    @property
    def address(self) -> int: ...
    def for_copies(self, described: bytes) -> list[Any]:
        """What ``SlotPacker.finish`` has described, for ``start_copy`` alone, in capsules."""
    @staticmethod
    def are_found(batch: Any) -> bool:
        """Whether ``start_copy`` finds each of these in a batch."""
    def leaves(self, described: bytes, whole: Any, buffer: Any) -> list[Any]:
        """The same as tensors and arrays. ``whole`` is a tensor of the bytes of the slot, ``buffer`` what they are the buffer of; both keep the lease."""

class SlotPacker:
    """A slot while a worker writes a batch there."""

    def __init__(self, address: int, size: int, leaf: Callable[[int], Any], keeper: Any) -> None: ...
    def reserve(self, bytes: int) -> int | None: ...
    def reduce(self, object: Any) -> Any:
        """The ``reducer_override`` of the pickler of the batch."""
    def finish(self) -> tuple[bytes, int, int, bool]:
        """The leaves, bytes that all would have taken, how many are beside the slot, and whether there was nothing but leaves."""

class SlotFiller:
    def __init__(self, descriptor: int, slot_bytes: int, slots: int) -> None: ...
    def claim(self, owner: int) -> ClaimedSlot | None: ...

class ClaimedSlot:
    @property
    def address(self) -> int | None: ...
    def hand_over(self) -> tuple[int, int] | None: ...
    def give_up(self) -> None: ...

class Handle:
    def ready(self) -> bool: ...
    def get(self, timeout: float | None = None) -> Any: ...
    def poll(self, socket: int) -> bool: ...
    def leave(self, socket: int) -> None: ...
    def wait_on(self, handle: int, stream: Any = None) -> Any: ...
    def cancel(self) -> bool: ...
    def progress(self) -> tuple[int, int] | None: ...
    def report(self) -> list[str] | None: ...
    def phases(self) -> dict[str, float]: ...

def start_copy_as_forebear(
    data: Any,
    device: Any,
    *,
    use_pinned_staging: bool,
    pack_cpu_tensors: bool,
    min_packed_alignment_bytes: int,
    max_packed_chunk_bytes: int,
    use_background_thread: bool,
    always: bool = False,
) -> Handle: ...
def start_copy(
    tree: Any,
    device: str,
    *,
    refused: list[str],
    own_memory: bool,
    convert: Callable[[Tensor], Any] | None,
    present: Callable[[Any], Any] | None,
    packing: bool,
    alignment: int,
    max_chunk_bytes: int,
    pinned: bool,
    background: bool,
    always: bool,
    behind: int | None = None,
) -> Handle: ...
def start_copies(
    tree: Any,
    devices: list[str],
    *,
    cast: dict[str, tuple[str, bool, tuple[float, float] | None]] | Callable[[tuple, Any], Any] | None,
    refused: list[str],
    own_memory: bool,
    convert: Callable[[Tensor], Any] | None,
    present: Callable[[Any], Any] | None,
    packing: bool,
    alignment: int,
    max_chunk_bytes: int,
    pinned: bool,
    background: bool,
    always: bool,
    behind: int | None = None,
) -> list[Handle]: ...
def start_copy_into(tree: Any, into: Any, *, cast: Any, pinned: bool, background: bool) -> Handle: ...
def load_safetensors(
    paths: list[Any], device: str, *, convert: Callable[[Tensor], Any] | None, names: set[str] | None
) -> dict[str, Any]: ...
def devices() -> list[str]:
    """The devices that there are, by name, such as ``["cuda:0", "cuda:1"]``; the host is not among them. Opens none of them."""

def held() -> dict[str, int]:
    """What the library holds, in bytes, by device: tensors in its memory, page-locked blocks in use; and how much it has leaked."""

def torch_ways() -> dict[str, str] | None: ...
def close() -> None: ...
