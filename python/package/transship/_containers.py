"""Containers beside lists, tuples and dicts: how they are taken apart, and how new ones like them are made."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, MutableMapping
from typing import Any, Callable

# What takes an object apart: into a list of what it holds, a function that makes another one out of a list of as many, and what it calls
# them: a list of keys, a tuple of the names of attributes, or None.
Flatten = Callable[[Any], "tuple[list, Callable[[list], Any], list | tuple | None]"]

_registered: dict[type, Flatten] = {}


def register_container(
    cls: type,
    flatten: Callable[[Any], tuple[list, Any]],
    unflatten: Callable[[Any, list], Any],
) -> None:
    """Let objects of a class, and of those derived from it, be containers.

    Args:
        cls: the class.
        flatten: takes an object apart into a list of what it holds, and a context of any kind.
        unflatten: makes an object out of a context and a list of as many objects. Called each time that a result is asked for.

    ``flatten`` and ``unflatten`` may run any code; the structure must not change meanwhile.
    """
    if not isinstance(cls, type):
        raise TypeError(f"register_container takes a class, and not {cls!r}")
    for name, function in (("flatten", flatten), ("unflatten", unflatten)):
        if not callable(function):
            raise TypeError(f"register_container takes a function for {name}, and not {function!r}")

    def opened(value: Any) -> tuple[list, Callable[[list], Any], None]:
        held, context = flatten(value)
        return list(held), lambda items: unflatten(context, items), None

    _registered[cls] = opened


def find(cls: type) -> Flatten | None:
    """What takes objects of this class apart; ``None`` if they are no containers."""
    for base in cls.__mro__:
        if base in _registered:
            return _registered[base]
    if issubclass(cls, tuple):
        return _named_tuple if hasattr(cls, "_fields") and hasattr(cls, "_make") else _tuple
    if issubclass(cls, list):
        return _list
    if issubclass(cls, (dict, MutableMapping)):
        return _mutable_mapping
    if issubclass(cls, Mapping):
        return _mapping
    if dataclasses.is_dataclass(cls):
        return _dataclass
    return None


def _named_tuple(value):
    return list(value), type(value)._make, tuple(type(value)._fields)


def _tuple(value):
    cls = type(value)
    try:
        # As for lists, what a class of the program does when it is called is not asked for.
        tuple.__new__(cls)
    except TypeError:
        # Python refuses that for classes that are written in C, which are made out of what they hold.
        return list(value), cls, None
    attributes = dict(getattr(value, "__dict__", ()))

    def rebuild(items):
        made = tuple.__new__(cls, items)
        if attributes:
            made.__dict__.update(attributes)
        return made

    return list(value), rebuild, None


def _list(value):
    template = copy.copy(value)
    template[:] = [None] * len(value)

    def rebuild(items):
        made = copy.copy(template)
        made[:] = items
        return made

    return list(value), rebuild, None


def _mutable_mapping(value):
    # A template without what it held: the handle of a copy must not keep that.
    template = copy.copy(value)
    keys = list(value)
    for key in keys:
        template[key] = None

    def rebuild(items):
        made = copy.copy(template)
        for key, item in zip(keys, items):
            made[key] = item
        return made

    return [value[key] for key in keys], rebuild, keys


def _mapping(value):
    keys, cls = list(value), type(value)

    def rebuild(items):
        try:
            return cls(dict(zip(keys, items)))
        except TypeError as error:
            raise TypeError(
                f"a {cls.__module__}.{cls.__qualname__} cannot be made out of a dict; "
                "tell transship.register_container how it is made"
            ) from error

    return [value[key] for key in keys], rebuild, keys


def _dataclass(value):
    names = [field.name for field in dataclasses.fields(value) if hasattr(value, field.name)]
    template = copy.copy(value)
    for name in names:
        object.__setattr__(template, name, None)

    def rebuild(items):
        made = copy.copy(template)
        for name, item in zip(names, items):
            object.__setattr__(made, name, item)
        return made

    return [getattr(value, name) for name in names], rebuild, tuple(names)
