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
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any: ...

class Handle:
    def ready(self) -> bool: ...
    def get(self, timeout: float | None = None) -> Any: ...
    def poll(self, socket: int) -> bool: ...
    def leave(self, socket: int) -> None: ...
    def wait_on(self, handle: int, stream: Any = None) -> None: ...
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
    own_memory: bool,
    convert: Callable[[Tensor], Any] | None,
    present: Callable[[Any], Any] | None,
    packing: bool,
    alignment: int,
    max_chunk_bytes: int,
    pinned: bool,
    background: bool,
    always: bool,
) -> Handle: ...
def load_safetensors(
    paths: list[Any], device: str, *, convert: Callable[[Tensor], Any] | None, names: set[str] | None
) -> dict[str, Any]: ...
def devices() -> list[str]:
    """The devices that there are, by name, such as ``["cuda:0", "cuda:1"]``; the host is not among them. Opens none of them."""

def torch_ways() -> dict[str, str] | None: ...
def close() -> None: ...
