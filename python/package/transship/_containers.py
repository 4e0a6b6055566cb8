"""Containers beside lists, tuples and dicts: how they are taken apart, and how new ones like them are made."""

from __future__ import annotations

import collections
import copy
import dataclasses
import functools
import sys
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

    ``flatten`` and ``unflatten`` may run any code; the structure, and where its tensors lie, must not change meanwhile.
    """
    if not isinstance(cls, type):
        raise TypeError(f"register_container takes a class, and not {cls!r}")
    if cls in (list, tuple, dict) or (cls.__module__, cls.__name__) in (("torch", "Tensor"), ("torch.nn.parameter", "Parameter")):
        raise TypeError(f"objects of {cls!r} are taken as what they are; register a class that is derived from it")
    for name, function in (("flatten", flatten), ("unflatten", unflatten)):
        if not callable(function):
            raise TypeError(f"register_container takes a function for {name}, and not {function!r}")

    def opened(value: Any) -> tuple[list, Callable[[list], Any], None]:
        taken = flatten(value)
        if not isinstance(taken, (tuple, list)) or len(taken) != 2:
            raise TypeError(f"flatten of {cls!r} gives a list and a context, and not {taken!r}")
        held, context = taken
        return list(held), lambda items: unflatten(context, items), None

    _registered[cls] = opened


def find(cls: type) -> Flatten | None:
    """What takes objects of this class apart; ``None`` if they are no containers."""
    for base in cls.__mro__:
        if base in _registered:
            return _registered[base]
    if _is_of_tensordict(cls):
        return _tensor_dict
    if issubclass(cls, tuple):
        if cls.__name__ == "PackedSequence" and cls.__module__ == "torch.nn.utils.rnn":
            return _packed_sequence
        return _named_tuple if hasattr(cls, "_fields") and hasattr(cls, "_make") else _tuple
    if issubclass(cls, (list, collections.UserList)):
        return _list
    if issubclass(cls, collections.deque):
        return _deque
    if issubclass(cls, dict) or issubclass(cls, MutableMapping) and hasattr(cls, "__copy__"):
        return _filled_again
    if issubclass(cls, Mapping):
        return _mapping
    if dataclasses.is_dataclass(cls):
        return _dataclass
    return None


def _named_tuple(value):
    cls, attributes = type(value), _attributes(value)

    def rebuild(items):
        made = cls._make(items)
        made.__dict__.update(attributes)
        return made

    return list(value), rebuild if attributes else cls._make, tuple(cls._fields)


def _attributes(value):
    cls = type(value)
    return {name: held for name, held in getattr(value, "__dict__", {}).items() if not _is_computed(cls, name)}


def _tuple(value):
    cls = type(value)
    try:
        # As for lists, what a class of the program does when it is called is not asked for.
        tuple.__new__(cls)
    except TypeError:
        # Python refuses that for classes that are written in C, which are made out of what they hold.
        return list(value), cls, None
    attributes = _attributes(value)

    def rebuild(items):
        made = tuple.__new__(cls, items)
        if attributes:
            made.__dict__.update(attributes)
        return made

    return list(value), rebuild, None


def _packed_sequence(value):
    cls, lengths = type(value), value.batch_sizes

    def rebuild(items):
        data, order, order_before = items
        # PyTorch reads the lengths on the host, and takes them from there only.
        return cls(data, lengths, order, order_before)

    names = ("data", "sorted_indices", "unsorted_indices")
    return [getattr(value, name) for name in names], rebuild, names


def _is_of_tensordict(cls):
    module = sys.modules.get("tensordict")
    return module is not None and (issubclass(cls, module.TensorDictBase) or module.is_tensorclass(cls))


def _tensor_dict(value):
    """Of ``TensorDict``, and of classes that ``tensorclass`` makes: as mappings they go through their batch dimension."""
    made_of, cls = sys.modules["tensordict"], type(value)
    is_class = made_of.is_tensorclass(cls)
    keys = [field.name for field in dataclasses.fields(value)] if is_class else list(value.keys())
    held = [getattr(value, key) for key in keys] if is_class else [value[key] for key in keys]
    shape, names, is_of_one_device = value.batch_size, value.names, value.device is not None

    def rebuild(items):
        devices = (item.device for item in items if is_of_one_device and hasattr(item, "device"))
        made = made_of.TensorDict(dict(zip(keys, items)), batch_size=shape, device=next(devices, None))
        if any(name is not None for name in names):
            made.names = names
        return cls.from_tensordict(made) if is_class else made

    return held, rebuild, tuple(keys) if is_class else keys


def _list(value):
    held = list(value)
    template = _like(value)
    template[:] = [None] * len(held)
    if any(now is None and item is not None for now, item in zip(value, held)):
        value[:] = held
        raise _shared(value)

    def rebuild(items):
        made = copy.copy(template)
        made[:] = items
        return made

    return held, rebuild, None


def _deque(value):
    held, template = list(value), _like(value)
    template.clear()

    def rebuild(items):
        made = copy.copy(template)
        made.extend(items)
        return made

    return held, rebuild, None


def _filled_again(value):
    keys = list(value)
    held = [value[key] for key in keys]
    # A template without what it held: the handle of a copy must not keep that.
    template = _like(value)
    for key, item in zip(keys, held):
        try:
            template[key] = None
        except Exception as error:
            raise TypeError(f"a {_name(value)} has no place for None at {key!r}{_ADVICE}") from error
        if value[key] is None and item is not None:
            value[key] = item
            raise _shared(value)

    def rebuild(items):
        made = copy.copy(template)
        for key, item in zip(keys, items):
            made[key] = item
        return made

    return held, rebuild, keys


def _mapping(value):
    keys, cls = list(value), type(value)

    def rebuild(items):
        try:
            return cls(dict(zip(keys, items)))
        except TypeError as error:
            raise TypeError(f"a {_name(value)} cannot be made out of a dict{_ADVICE}") from error

    return [value[key] for key in keys], rebuild, keys


def _dataclass(value):
    names = [field.name for field in dataclasses.fields(value) if hasattr(value, field.name)]
    held = [getattr(value, name) for name in names]
    template = _like(value)
    for name in names:
        object.__setattr__(template, name, None)

    def rebuild(items):
        made = copy.copy(template)
        for name, item in zip(names, items):
            object.__setattr__(made, name, item)
        return made

    return held, rebuild, tuple(names)


_ADVICE = "; tell transship.register_container how it is taken apart and made"


def _like(value):
    """A copy, without what the class has computed of what it holds."""
    made = copy.copy(value)
    attributes = getattr(made, "__dict__", {})
    if made is value or attributes is getattr(value, "__dict__", None):
        raise _shared(value)
    for name in [name for name in attributes if _is_computed(type(made), name)]:
        del attributes[name]
    return made


def _is_computed(cls, name):
    return isinstance(getattr(cls, name, None), functools.cached_property)


def _shared(value):
    return TypeError(f"a {_name(value)} shares what it holds with its copies{_ADVICE}")


def _name(value):
    return f"{type(value).__module__}.{type(value).__qualname__}"
