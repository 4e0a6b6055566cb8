"""Containers that are no lists, tuples and dicts of Python's: they come back as they were, and what went in is left alone."""

import collections
import dataclasses
import functools
import weakref
from collections.abc import MutableMapping

import pytest
import torch

import transship
from trees import assert_copied


def copied(tree, **options):
    return transship.start_copy(tree, "cpu", copy=True, **options).get()


class CaseInsensitive(MutableMapping):
    """As that of ``requests``: copies of it share what it holds."""

    def __init__(self, items=()):
        self.items_held = {}
        self.update(items)

    def __getitem__(self, key):
        return self.items_held[key.lower()]

    def __setitem__(self, key, value):
        self.items_held[key.lower()] = value

    def __delitem__(self, key):
        del self.items_held[key.lower()]

    def __iter__(self):
        return iter(self.items_held)

    def __len__(self):
        return len(self.items_held)


# Deliberate bug: `find` in `_containers.py` takes any `MutableMapping` for one with copies of its own.
def test_a_mapping_whose_copies_share_what_it_holds():
    tensor = torch.ones(3)
    mapping = CaseInsensitive({"A": tensor, "b": 1})
    result = copied([mapping])[0]
    assert type(result) is CaseInsensitive and list(result) == ["a", "b"] and result["B"] == 1
    assert_copied([result["A"]], [tensor])
    assert mapping["a"] is tensor
    transship.start_copy_into([torch.zeros(3)], [mapping["a"]]).get()
    assert mapping["a"] is tensor and tensor.sum() == 0


class Sharing(dict):
    def __copy__(self):
        return self


class SharingList(list):
    def __copy__(self):
        return self


@dataclasses.dataclass
class SharingFields:
    x: torch.Tensor

    def __copy__(self):
        return self


@dataclasses.dataclass
class SharingAttributes:
    x: torch.Tensor

    def __copy__(self):
        made = object.__new__(SharingAttributes)
        made.__dict__ = self.__dict__
        return made


class SharingInside(CaseInsensitive):
    def __copy__(self):
        made = SharingInside()
        made.items_held = self.items_held
        return made


# Deliberate bugs: `_like` does not look at what it gets, or `_filled_again` at what is there.
@pytest.mark.parametrize(
    ("make", "held"),
    [
        (lambda tensor: Sharing(a=tensor), lambda value: value["a"]),
        (lambda tensor: SharingList([tensor]), lambda value: value[0]),
        (SharingFields, lambda value: value.x),
        (SharingAttributes, lambda value: value.x),
        (lambda tensor: SharingInside({"a": tensor}), lambda value: value["a"]),
    ],
)
def test_copies_that_are_none_are_refused(make, held):
    tensor = torch.ones(2)
    value = make(tensor)
    for start in (
        lambda: transship.start_copy({"k": value}, "cpu", copy=True),
        lambda: transship.start_copy_into({"k": [torch.ones(2)]}, {"k": value}),
    ):
        with pytest.raises(TypeError, match="register_container"):
            start()
        assert held(value) is tensor


def test_mappings_that_take_no_none_are_refused():
    tensor = torch.ones(2)
    mapping = weakref.WeakValueDictionary(a=tensor)
    with pytest.raises(TypeError, match="no place for None at 'a'.*register_container"):
        copied(mapping)
    assert mapping["a"] is tensor


@pytest.mark.parametrize("make", [collections.UserDict, collections.ChainMap, collections.OrderedDict, lambda d: collections.defaultdict(list, d)])
def test_mappings_of_python(make):
    tensor = torch.ones(2)
    mapping = make({"a": tensor, "n": None})
    result = copied(mapping)
    assert type(result) is type(mapping) and result["n"] is None and list(result) == ["a", "n"]
    assert_copied([result["a"]], [tensor])
    assert mapping["a"] is tensor


class Queue(collections.deque):
    pass


# Deliberate bug: `_deque` in `_containers.py` keeps no limit.
@pytest.mark.parametrize("cls", [collections.deque, Queue])
def test_deques(cls):
    tensor = torch.ones(2)
    value = cls([tensor, "x"], maxlen=3)
    result = copied(value)
    assert type(result) is cls and result.maxlen == 3 and result[1] == "x" and len(value) == 2
    assert_copied([result[0]], [tensor])
    there = cls([torch.zeros(2), "y"])
    transship.start_copy_into(value, there).get()
    assert there[0].tolist() == [1, 1]


def test_lists_of_the_user():
    value = collections.UserList([torch.ones(2), None])
    result = copied(value)
    assert type(result) is collections.UserList and result[1] is None
    assert_copied([result[0]], [value[0]])


@dataclasses.dataclass
class Doubling:
    x: torch.Tensor

    @functools.cached_property
    def twice(self):
        return self.x * 2


class Pair(tuple):
    @functools.cached_property
    def total(self):
        return self[0] + self[1]


# Deliberate bugs: `_like` keeps what was computed, or `_tuple` does.
def test_what_was_computed_of_the_tensors_is_computed_anew():
    value = Doubling(torch.ones(2))
    assert value.twice.dtype == torch.float32
    result = copied(value, cast="float16")
    assert result.twice.dtype == torch.float16 and result.twice is not value.twice
    pair = Pair([torch.ones(2), torch.ones(2)])
    assert pair.total.dtype == torch.float32
    assert copied(pair, cast="float16").total.dtype == torch.float16


# Deliberate bug: `find` takes a `PackedSequence` for a named tuple: on a device its lengths would be there too, and no RNN takes it.
def test_the_lengths_of_packed_sequences_stay_on_the_host():
    rows = [torch.rand(n, 2) for n in (3, 5, 2)]
    packed = torch.nn.utils.rnn.pack_sequence(rows, enforce_sorted=False)
    leaves = []
    transship.start_copy({"p": packed}, "cpu", cast=lambda path, leaf: leaves.append(path)).get()
    assert leaves == [("p", "data"), ("p", "sorted_indices"), ("p", "unsorted_indices")]
    result = copied(packed, cast={"float32": "float64"})
    assert type(result) is type(packed) and result.batch_sizes is packed.batch_sizes
    assert result.data.dtype == torch.float64 and result.data.data_ptr() != packed.data.data_ptr()
    torch.nn.LSTM(2, 3).double()(result)
    padded, lengths = torch.nn.utils.rnn.pad_packed_sequence(result, batch_first=True)
    assert lengths.tolist() == [3, 5, 2]
    assert torch.equal(padded[1].float(), rows[1])


class TestTensorDict:
    @pytest.fixture(autouse=True)
    def tensordict(self):
        self.of = pytest.importorskip("tensordict")

    # Deliberate bug: `find` does not know it: as a mapping it goes through its batch dimension.
    def test_it_keeps_its_batch_and_what_is_no_tensor(self):
        inner = self.of.TensorDict({"c": torch.zeros(3)}, batch_size=[3])
        value = self.of.TensorDict({"a": torch.ones(3, 2), "b": inner, "s": "text"}, batch_size=[3], names=["x"], device="cpu")
        result = copied([value])[0]
        assert type(result) is self.of.TensorDict and result.batch_size == value.batch_size
        assert result.names == ["x"] and result.device == torch.device("cpu") and result["s"] == "text"
        assert_copied([result["a"], result["b", "c"]], [value["a"], value["b", "c"]])
        assert result[1]["a"].tolist() == [1, 1]

    def test_it_is_copied_into(self):
        value = self.of.TensorDict({"a": torch.ones(3, 2), "b": {"c": torch.ones(3)}}, batch_size=[3])
        there = value.clone().zero_()
        transship.start_copy_into([value], [there]).get()
        assert (there == value).all()

    def test_paths_are_named(self):
        value = self.of.TensorDict({"b": {"c": torch.zeros(3)}}, batch_size=[3])
        paths = []
        copied([value], cast=lambda path, leaf: paths.append(path))
        assert paths == [(0, "b", "c")]

    # Deliberate bug: `find` takes it for a dataclass: what is filled in is not in its `TensorDict`.
    def test_classes_of_it(self):
        cls = self.of.tensorclass(dataclasses.make_dataclass("Sample", [("a", torch.Tensor), ("s", str), ("n", object, None)]))
        value = cls(torch.ones(2, 2), "x", cls(torch.zeros(2, 1), "y", batch_size=[2]), batch_size=[2])
        result = copied(value)
        assert type(result) is cls and result.batch_size == value.batch_size
        assert (result.s, result.n.s, result.n.n) == ("x", "y", None)
        assert_copied([result.a, result.n.a], [value.a, value.n.a])
        assert result[0].a.tolist() == [1, 1]
        assert copied(value, cast="float16").to_tensordict()["a"].dtype == torch.float16
