"""``transship.start_copy`` and its handle."""

from __future__ import annotations

import asyncio
import functools
import importlib
import operator
import socket
import sys
from typing import Any, Callable, Generator

from . import _transship
from ._cast import lowered

_FRAMEWORKS = {"numpy": "numpy", "torch": "torch.utils.dlpack", "jax": "jax.dlpack", "cupy": "cupy"}
# Types that numpy has no arrays of, and may get from ml_dtypes.
_NOT_OF_NUMPY = (
    "bfloat16",
    "complex32",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
)
_CLASSES = {"numpy": ("numpy", "ndarray"), "torch": ("torch", "Tensor"), "jax": ("jax", "Array"), "cupy": ("cupy", "ndarray")}


class Handle:
    """A copy that was started. Any number of threads and tasks may use and await it; dropping it gives up what is not submitted yet."""

    __slots__ = ("_h", "__weakref__")

    def __init__(self, handle: _transship.Handle) -> None:
        self._h = handle

    def ready(self) -> bool:
        """Say whether the copy is done; or has failed or was cancelled, and nothing of it is in flight any more. Does not block."""
        return self._h.ready()

    def get(self, timeout: float | None = None) -> Any:
        """Wait for the copy, at most ``timeout`` seconds, and return the structure with its tensors on the target.

        The GIL is let go of meanwhile; Ctrl-C is noticed within 50 ms. May be called again: containers are new each time, tensors
        the same ones.

        Raises:
            transship.Error: the copy has failed.
            TimeoutError: it is not done yet, and goes on.
        """
        return self._h.get(timeout)

    def wait_on(self, stream: Any) -> Any:
        """Return the structure without waiting for the device: work submitted to ``stream`` from now on finds its tensors filled.

        ``stream`` is a ``torch.cuda.Stream``, or the driver's handle of a stream of the target as an ``int``. The inputs must stay as
        they are until that stream has come by. A stream that is given as a number must not be destroyed before the results are gone, and
        whatever was made of them: their memory is used again behind it. May be called again, for other streams; ``get``, ``ready`` and ``await`` wait for the
        copy afterwards as before.

        Raises:
            transship.Error: the copy has failed.
            ValueError: the target is the host, or ``stream`` is one of another device.
        """
        if isinstance(stream, int):
            return self._h.wait_on(stream)
        if not hasattr(stream, "cuda_stream"):
            raise TypeError(f"wait_on({stream!r}); it takes a torch.cuda.Stream, or the driver's handle of a stream")
        return self._h.wait_on(stream.cuda_stream, stream)

    def cancel(self) -> bool:
        """Give up what is not submitted yet. ``get`` raises from then on, once nothing is in flight any more: then what the copy reads and
        fills may be written again. ``False`` if the copy is over or was handed to a stream, or a thread waits for it."""
        return self._h.cancel()

    def progress(self) -> tuple[int, int] | None:
        """Bytes that have arrived, and of all, with what lies between packed leaves; ``None`` once the copy is over, and while a thread waits for it."""
        return self._h.progress()

    def report(self) -> list[str] | None:
        """What was done so far, a text for each copy that runs; ``None`` as for ``progress``.

        Tensors of each place are one copy, and many large ones several.
        """
        return self._h.report()

    def __await__(self) -> Generator[Any, None, Any]:
        return self._done().__await__()

    async def _done(self) -> Any:
        if not self._h.ready():
            loop = asyncio.get_running_loop()
            watched, woken = socket.socketpair()
            with watched, woken:
                watched.setblocking(False)
                try:
                    while not self._h.poll(woken.fileno()):
                        await loop.sock_recv(watched, 16)
                finally:
                    self._h.leave(woken.fileno())
        return self._h.get()


def start_copy(
    tree: Any,
    device: Any,
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
    _behind: int | None = None,
) -> Handle:
    """Start to copy all tensors of a structure to a device, and return at once.

    Args:
        tree: a structure, of up to 1000 containers in each other. Lists, tuples, dicts, named tuples, dataclasses, mappings, deques, classes derived from these, and what
            ``register_container`` was told come back as what they are. Tensors of PyTorch, arrays of numpy and whatever else has
            ``__dlpack__`` and ``__dlpack_device__`` are copied. All else goes through, the same object, and so does a tensor that is on
            the device already. Masked arrays of numpy are an error, unless they go through: a copy would have no mask.
        device: such as ``"cuda:0"`` or ``"cpu"``, a ``torch.device``, or the number of a device of CUDA.
        memory: ``"torch"``: results lie in memory of PyTorch's allocators, on its current stream; the default once the program has
            imported PyTorch. Its allocator may block. ``"transship"``: in memory of this library.
        like: what tensors come back as: ``"torch"``, ``"numpy"`` (on the host), ``"jax"``, ``"cupy"``, or ``"dlpack"`` for
            ``transship.Tensor``, which has ``__dlpack__``. By default tensors of PyTorch once the program has imported it, else
            ``transship.Tensor``, and on the host arrays of numpy once the program has imported that. Given, it holds for tensors that
            are on the device already as well, which share their memory then, but for arrays of numpy that are read-only or go backwards;
            ``"dlpack"`` leaves those as they are.
        cast: converts elements on the way. A type, such as ``torch.bfloat16``, a ``numpy.dtype`` or a name: tensors of its kind (floating
            point, or integers) become that. A ``transship.Cast``, which says more: ``Cast("float16", scale=1 / 255)`` makes numbers of
            images of ``uint8``. A mapping of types to types or ``Cast``s. Or a function of the path of a leaf (a tuple of keys, indices
            and names of attributes) and the leaf, which returns a type or a ``Cast``, or ``None`` for those that stay as they are, and gives no tensor other memory. What is on
            the device already is copied if it is cast.
        packing: whether tensors of up to 256 KiB share memory.
        alignment: the least alignment of a packed tensor in the memory that it shares, in bytes, any number from 0 on; rounded up to a
            multiple of the size of its elements. It is that of the offset there, not of the address: how the memory as a whole is
            aligned is up to the allocator.
        max_chunk_bytes: the most memory that several tensors share, on devices and on the host: who keeps one of them keeps it all.
        pinned: copy through page-locked memory, and into such memory on the way to the host.
        background: let threads of the library stage what is large.
        copy: copy tensors that are on the device already as well: results share no memory with what went in.

    The caller neither changes nor frees the inputs before the copy is done, nor has PyTorch move them to other memory (``resize_``, ``share_memory_``, a queue of ``torch.multiprocessing``). Copies carry no gradient.

    Raises:
        transship.Error: the device is none, is not there, or the copy cannot be started; an integer that its new type cannot hold.
        TypeError: a tensor that cannot be copied, cast, or come back as ``like`` says (arrays of numpy have no ``bfloat16`` without the
            package ml_dtypes). A note names its path.
        RecursionError: a structure that is nested too deeply, or in itself.
        ValueError: an option that is none.
    """
    name = name_of(device)
    asked = like
    memory, like = chosen(memory, like, name)
    alignment, max_chunk_bytes = number_of("alignment", alignment), number_of("max_chunk_bytes", max_chunk_bytes)
    options: dict[str, Any] = {
        "refused": refused_types(like),
        "own_memory": memory == "transship",
        "convert": None if memory == "torch" else converter(like),
        "present": None if asked is None else converter_of_present(like),
        "packing": switch("packing", packing),
        "alignment": alignment,
        "max_chunk_bytes": max_chunk_bytes,
        "pinned": switch("pinned", pinned),
        "background": switch("background", background),
        "always": switch("copy", copy),
        # Of ``prefetch``: the handle of the stream that tensors on the device were made on.
        "behind": _behind,
    }
    if cast is not None:
        return Handle(_transship.start_copies(tree, [full_name(name)], cast=lowered(cast), **options)[0])
    return Handle(_transship.start_copy(tree, full_name(name), **options))


def chosen(memory: str | None, like: str | None, device: str) -> tuple[str, str]:
    if memory not in (None, "torch", "transship"):
        raise ValueError(f"memory={memory!r}; it is 'torch' or 'transship'")
    if like not in (None, "dlpack", *_FRAMEWORKS):
        raise ValueError(f"like={like!r}; it is one of 'dlpack', {', '.join(map(repr, _FRAMEWORKS))}")
    if like == "numpy" and device != "cpu":
        raise ValueError("like='numpy' on a device; arrays of numpy lie on the host")
    if memory == "torch" and like not in (None, "torch"):
        raise ValueError(f"memory='torch' and like={like!r}; in memory of PyTorch there are its own tensors")
    if like is None:
        has_numpy = device == "cpu" and "numpy" in sys.modules
        like = "torch" if memory == "torch" or "torch" in sys.modules else "numpy" if has_numpy else "dlpack"
    if memory is None:
        memory = "torch" if like == "torch" else "transship"
    return memory, like


def name_of(device: Any) -> str:
    """The name of a device, which may be given as a number, as PyTorch has it."""
    if isinstance(device, int) and not isinstance(device, bool):
        if device < 0:
            raise ValueError(f"device={device}; a device of CUDA is a number of at least 0, or 'cuda:0'")
        return f"cuda:{device}"
    name = device if isinstance(device, str) else str(device)
    return "cpu" if name in ("cpu:0", "host") else name


def switch(name: str, value: bool) -> bool:
    if isinstance(value, bool):
        return value
    if type(value).__module__ == "numpy" and type(value).__name__ in ("bool", "bool_"):
        return bool(value)
    raise TypeError(f"{name}={value!r}; it is True or False")


def number_of(name: str, number: int) -> int:
    try:
        number = operator.index(number)
    except TypeError:
        raise TypeError(f"{name}={number!r}; it is a whole number of bytes") from None
    if not 0 <= number <= sys.maxsize:
        raise ValueError(f"{name}={number}; it is a number of bytes from 0 to {sys.maxsize}")
    return number


def full_name(device: str) -> str:
    if device != "cuda":
        return device
    try:
        return f"cuda:{sys.modules['torch'].cuda.current_device()}"
    except (KeyError, RuntimeError, AssertionError):
        # If there is none, the library says so.
        return "cuda:0"


def refused_types(like: str) -> list[str]:
    """The types that results cannot have."""
    if like != "numpy":
        return []
    added = _ml_dtypes()
    return [name for name in _NOT_OF_NUMPY if not hasattr(added, name)]


def _ml_dtypes() -> Any:
    """The package that adds types to numpy, if the user has it."""
    return _installed_ml_dtypes() or sys.modules.get("ml_dtypes")


@functools.cache
def _installed_ml_dtypes() -> Any:
    # Looked for once: that takes longer than a small copy, and a lock that a fork leaves behind if another thread has it.
    try:
        return importlib.import_module("ml_dtypes")
    except ImportError:
        return None


def converter(like: str) -> Callable[[Any], Any] | None:
    if like == "dlpack":
        return None
    if like == "numpy":
        return _array
    return importlib.import_module(_FRAMEWORKS[like]).from_dlpack


def _array(tensor: Any) -> Any:
    """An array of numpy's over the memory of a tensor of any library."""
    numpy = importlib.import_module("numpy")
    name = str(getattr(tensor, "dtype", "")).removeprefix("torch.")
    if name not in _NOT_OF_NUMPY:
        return numpy.from_dlpack(tensor)
    added = getattr(_ml_dtypes(), name, None)
    if added is None:
        raise TypeError(f"arrays of numpy have no {name}: install an ml_dtypes that adds that type to numpy, or ask for like=\"torch\" or like=\"dlpack\"")
    if isinstance(tensor, _transship.Tensor):
        return numpy.from_dlpack(tensor.bits()).view(added)
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(tensor, torch.Tensor):
        return numpy.from_dlpack(tensor)
    return tensor.view(torch.int16 if tensor.element_size() == 2 else torch.uint8).numpy().view(added)


def converter_of_present(like: str) -> Callable[[Any], Any] | None:
    """As ``converter``, for what is on the target already, of whatever library. Memory is shared, unless no other library can have it so."""
    from_dlpack = converter(like)
    if from_dlpack is None:
        return None
    module, name = _CLASSES[like]
    cls = getattr(importlib.import_module(module), name)

    def convert(tensor: Any) -> Any:
        if isinstance(tensor, cls):
            return tensor
        torch = sys.modules.get("torch")
        try:
            if torch is not None and isinstance(tensor, torch.Tensor):
                tensor = tensor.detach().resolve_conj().resolve_neg()
            elif _is_of_numpy_alone(tensor):
                tensor = sys.modules["numpy"].array(tensor)
            return from_dlpack(tensor)
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            raise TypeError(f"a tensor that is on the device already, and cannot come back as like={like!r}: {error}") from error

    return convert


def _is_of_numpy_alone(tensor: Any) -> bool:
    """Whether this is an array that others cannot have in place: they would write what must not be written, or know no way backwards."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(tensor, numpy.ndarray):
        return False
    return not (tensor.flags.writeable and tensor.flags.aligned) or any(stride < 0 for stride in tensor.strides)
