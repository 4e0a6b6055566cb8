"""Which elements become which on the way: ``cast=``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

_FLOATS = ("float16", "bfloat16", "float32", "float64")
_INTEGERS = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64")

_Lowered = "tuple[str, bool, tuple[float, float] | None]"


class Cast:
    """What elements become.

    Args:
        dtype: a ``torch.dtype``, a ``numpy.dtype`` or a class of numpy's, or a name such as ``"bfloat16"``.
        saturating: integers that do not fit become the largest or the smallest one that does. Without, each value is looked at when
            the copy starts, and one that does not fit is an error; what lies on a device cannot be looked at.
        scale, bias: ``uint8`` to floating point: each becomes ``x * scale + bias``, computed in ``float32`` with a rounding after the
            product and one after the sum.

    Floating point of 16 to 64 bits becomes another of these, rounded once, to the nearest, ties to even; integers become other integers;
    ``uint8`` becomes ``float16``, ``bfloat16`` or ``float32``. There are no others.
    """

    __slots__ = ("dtype", "saturating", "scale", "bias")

    def __init__(self, dtype: Any, *, saturating: bool = False, scale: float | None = None, bias: float | None = None) -> None:
        self.dtype = name_of_dtype(dtype)
        self.saturating = bool(saturating)
        self.scale = None if scale is None else float(scale)
        self.bias = None if bias is None else float(bias)

    def __repr__(self) -> str:
        given = [repr(self.dtype)]
        given += ["saturating=True"] if self.saturating else []
        given += [f"{name}={value}" for name, value in (("scale", self.scale), ("bias", self.bias)) if value is not None]
        return f"Cast({', '.join(given)})"

    def _lowered(self) -> _Lowered:
        is_scaled = self.scale is not None or self.bias is not None
        scaling = (1.0 if self.scale is None else self.scale, self.bias or 0.0) if is_scaled else None
        return self.dtype, self.saturating, scaling


def name_of_dtype(dtype: Any) -> str:
    """The name that PyTorch, numpy and this library have for a type."""
    if isinstance(dtype, str):
        return dtype
    name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype)
    return str(name).removeprefix("torch.")


def lowered(cast: Any) -> Any:
    """``cast=`` as the part in Rust takes it: a dict of names of types, a function of a path and a leaf, or ``None``."""
    if cast is None:
        return None
    if isinstance(cast, Mapping):
        return {name_of_dtype(dtype): _of(to)._lowered() for dtype, to in cast.items()}
    if _is_function(cast):
        return _asking(cast)
    return {name: _of(cast)._lowered() for name in _types_for(_of(cast))}


def _asking(function: Callable[[tuple, Any], Any]) -> Callable[[tuple, Any], Any]:
    def ask(path: tuple, leaf: Any) -> Any:
        to = function(path, leaf)
        return None if to is None else _of(to)._lowered()

    return ask


def _is_function(cast: Any) -> bool:
    return callable(cast) and not isinstance(cast, (type, Cast)) and not hasattr(cast, "itemsize")


def _of(to: Any) -> Cast:
    return to if isinstance(to, Cast) else Cast(to)


def _types_for(cast: Cast) -> tuple[str, ...]:
    """Which types one that stands alone is for: those of its own kind, and what is scaled is ``uint8``."""
    if cast.scale is not None or cast.bias is not None:
        return ("uint8",)
    if cast.dtype in _FLOATS:
        return _FLOATS
    if cast.dtype in _INTEGERS:
        return _INTEGERS
    raise TypeError(f"cast={cast.dtype!r}; nothing becomes that: it is a type of floating point of 16 to 64 bits, or of integers")
