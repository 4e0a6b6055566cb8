"""``transship.start_copy``: containers, other libraries, waiting, errors."""

import asyncio
import collections
import dataclasses
import gc
import re
import subprocess
import sys
import sysconfig
import textwrap
import threading
import time
import types
import weakref
from collections.abc import Mapping

import numpy as np
import pytest
import torch

import transship
from trees import assert_copied, assert_same


def copied(tree, **options):
    return transship.start_copy(tree, "cpu", copy=True, **options).get()


Pair = collections.namedtuple("Pair", "tensor name")


@dataclasses.dataclass(frozen=True)
class Sample:
    tensor: torch.Tensor
    name: str
    derived: int = dataclasses.field(init=False, default=3)


class Reversed(list):
    pass


class Frozen(Mapping):
    def __init__(self, held):
        self._held = dict(held)

    def __getitem__(self, key):
        return self._held[key]

    def __iter__(self):
        return iter(self._held)

    def __len__(self):
        return len(self._held)


def test_containers_come_back_as_what_they_are():
    tensor = torch.arange(3)
    ordered = collections.OrderedDict([("b", tensor), ("a", 1)])
    counted = collections.defaultdict(list, {"k": tensor})
    kept = Reversed([tensor, "text"])
    kept.note = "kept"
    result = copied([Pair(tensor, "x"), Sample(tensor, "y"), ordered, counted, kept, Frozen({"m": tensor}), (tensor,)])
    assert [type(item) for item in result] == [Pair, Sample, collections.OrderedDict, collections.defaultdict, Reversed, Frozen, tuple]
    assert result[0].name == "x" and result[1].name == "y" and result[1].derived == 3
    assert list(result[2]) == ["b", "a"] and result[3].default_factory is list and result[4].note == "kept"
    for leaf in (result[0].tensor, result[1].tensor, result[2]["b"], result[3]["k"], result[4][0], result[5]["m"], result[6][0]):
        assert leaf is not tensor
        assert_same(leaf, tensor)


class Couple(tuple):
    def __new__(cls, first, second):
        return super().__new__(cls, (first, second))


class NamedCouple(collections.namedtuple("NamedCouple", "first second")):
    pass


class OfWords(Mapping):
    def __init__(self, **held):
        self._held = held

    __getitem__, __iter__, __len__ = Frozen.__getitem__, Frozen.__iter__, Frozen.__len__


# Deliberate bug: `_tuple` in `_containers.py` calls the class; it leaves the attributes out.
def test_tuples_of_any_class():
    couple, named = Couple(torch.ones(2), "text"), NamedCouple(torch.ones(2), "text")
    couple.note = named.note = "kept"
    result = copied([couple, torch.Size([1, 2]), torch.max(torch.ones(2, 2), 0), named])
    assert [type(item) for item in result] == [Couple, torch.Size, torch.return_types.max, NamedCouple]
    assert result[3].note == "kept" and result[3].first.tolist() == [1, 1] and result[3].second == "text"
    assert result[0].note == "kept" and result[0][1] == "text" and result[1] == (1, 2)
    assert result[0][0] is not couple[0] and result[2].values.tolist() == [1, 1]
    assert_same(result[0][0], couple[0])


# Deliberate bug: `_mapping` in `_containers.py` passes the error on as it is.
def test_mappings_that_cannot_be_made_are_named():
    with pytest.raises(TypeError, match="OfWords .*register_container"):
        copied({"a": OfWords(tensor=torch.ones(1))})


def test_functions_that_are_none():
    with pytest.raises(TypeError, match="flatten, and not 1"):
        transship.register_container(Couple, 1, lambda context, held: held)


def test_what_is_no_container_goes_through():
    others = [{1, 2}, "text", b"bytes", 3, None, types.SimpleNamespace(tensor=torch.ones(1)), range(3), Sample]
    assert all(one is other for one, other in zip(transship.start_copy(others, "cpu").get(), others))


def test_containers_of_the_program():
    class Box:
        def __init__(self, held):
            self.held = held

    transship.register_container(Box, lambda box: ([box.held], "context"), lambda context, held: Box(held[0]))
    result = copied(Box([torch.ones(2), Box(torch.zeros(1))]))
    assert isinstance(result, Box) and isinstance(result.held[1], Box)
    assert_same(result.held[1].held, torch.zeros(1))
    with pytest.raises(TypeError):
        transship.register_container("Box", None, None)


# Deliberate bugs: `other` in `tree.rs` gives `note_where` the number of the step behind, or of the last one that it has taken.
def test_what_cannot_be_put_together_is_named():
    class Picky:
        def __init__(self, held):
            self.held = held

    def made(name, held):
        if name == "bad":
            raise ValueError("none of these")
        return Picky(held)

    transship.register_container(Picky, lambda picky: (picky.held, picky.held[0]), made)
    fine = Picky(["fine", torch.ones(1), [torch.ones(1)]])
    handle = transship.start_copy({"a": [fine, (1, Picky(["bad", fine, {"x": fine}])), fine]}, "cpu", copy=True)
    for _ in range(2):
        with pytest.raises(ValueError, match="none of these") as raised:
            handle.get()
        said = str(raised.value) + "".join(getattr(raised.value, "__notes__", []))
        assert said.endswith("in the result, at ['a'][1][1]")
    with pytest.raises(ValueError) as raised:
        transship.start_copy(Picky(["bad"]), "cpu", copy=True).get()
    assert not getattr(raised.value, "__notes__", [])


# Deliberate bugs: `_mutable_mapping` and `_dataclass` in `_containers.py` keep what the templates held.
def test_a_handle_does_not_keep_what_containers_held():
    Mutable = dataclasses.make_dataclass("Mutable", ["tensor"])
    tensors = [torch.ones(3) for _ in range(3)]
    gone = [weakref.ref(tensor) for tensor in tensors]
    tree = [Mutable(tensors[0]), collections.OrderedDict(key=tensors[1]), Reversed([tensors[2]])]
    handle = transship.start_copy(tree, "cpu", copy=True)
    handle.get()
    del tensors, tree
    gc.collect()
    assert [one() for one in gone] == [None] * 3
    assert handle.get()[0].tensor.tolist() == [1, 1, 1]


# Deliberate bug: `traverse` in `tree.rs` leaves out `same`, or `keys`; `__traverse__` in `handle.rs` visits nothing.
@pytest.mark.parametrize("keeps_result", [False, True])
def test_cycles_through_a_handle_are_freed(keeps_result):
    class Holder:
        pass

    def cycle():
        holder, key = Holder(), Holder()
        key.holder = holder
        held = [holder, torch.ones(100_000), {key: Pair(torch.ones(3), holder)}]
        holder.handle = transship.start_copy(held, "cpu", copy=True)
        if keeps_result:
            holder.result = holder.handle.get()
        return [weakref.ref(item) for item in (holder, holder.handle, held[1], holder.handle.get()[1])]

    gone = cycle()
    gc.collect()
    assert [reference() for reference in gone] == [None] * 4


def test_an_input_that_leads_to_its_own_handle_is_freed_after_get():
    tensor = torch.ones(3)
    tensor.handle = transship.start_copy([tensor], "cpu", copy=True)
    tensor.handle.get()
    gone = weakref.ref(tensor)
    del tensor
    gc.collect()
    assert gone() is None


def test_the_collector_takes_nothing_from_copies_in_flight():
    class Holder:
        pass

    for number in range(20):
        holder = Holder()
        holder.handle = transship.start_copy([holder, torch.full((1 << 18,), float(number))], "cpu", copy=True)
        kept = holder.handle
        del holder
        gc.collect()
        assert kept.get()[1].sum() == number * (1 << 18)
        unasked = Holder()
        unasked.handle = transship.start_copy([unasked, torch.ones(1 << 18)], "cpu", copy=True)
        del unasked
    gc.collect()


def test_get_builds_anew():
    handle = transship.start_copy([Sample(torch.ones(1), "a")], "cpu", copy=True)
    first, second = handle.get(), handle.get()
    assert first[0] is not second[0] and first[0].tensor is second[0].tensor


# Deliberate bug: `like_last` in `tree.rs` does not look at the keys.
@pytest.mark.parametrize("keys", [["a", "b", "c", "d", "e", "f"], ["a", "b", 3, (4, 5), "e", "f"]])
def test_dicts_with_the_keys_of_the_last_one(keys):
    """Those of names begin as a copy of it, and have nothing of it in the end."""
    samples = [{key: torch.full((2,), 10.0 * index + place) for place, key in enumerate(keys)} for index in range(5)]
    samples[1]["b"] = "no tensor"
    samples[2] = dict(reversed(samples[2].items()))
    samples[3]["e"] = {"a": torch.ones(1), **samples[4]}
    samples.append(transship.start_copy)
    samples.append({"only": torch.ones(3)})
    result = copied(samples)
    assert_copied(result, samples)
    assert [list(sample) for sample in result[:5]] == [list(sample) for sample in samples[:5]]
    result[0]["more"] = 1
    assert [len(sample) for sample in result[:5]] == [7, 6, 6, 6, 6]


def test_keys_that_are_not_equal_to_themselves():
    class Key:
        hashes = iter(range(10**6))

        def __hash__(self):
            return next(self.hashes)

    keys = [Key() for _ in range(6)]
    samples = [{key: torch.full((2,), float(index)) for key in keys} for index in range(3)]
    for index, sample in enumerate(copied(samples)):
        assert len(sample) == 6
        assert all(torch.equal(leaf, torch.full((2,), float(index))) for leaf in sample.values())


def test_tensors_after_one_that_has_no_sizes():
    """PyTorch says so of a nested one with an error: it is asked otherwise from then on."""
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    for _ in range(2):
        result = copied([torch.ones(2, 3), nested, torch.zeros(1), torch.arange(4)])
        assert result[1].is_nested and [leaf.tolist() for leaf in result[1].unbind()] == [[1, 1], [1, 1, 1]]
        assert_copied([result[0], result[2], result[3]], [torch.ones(2, 3), torch.zeros(1), torch.arange(4)])


@pytest.mark.parametrize("memory", ["torch", "transship"])
def test_memory_of_either(memory):
    tensors = [torch.arange(n, dtype=dtype) for n in (0, 1, 5, 100_000) for dtype in (torch.int64, torch.bfloat16)]
    tensors += [torch.randn(4, 6)[:, ::2], torch.randn(3, 4, 5).permute(2, 0, 1)]
    for result, tensor in zip(copied(tensors, memory=memory), tensors):
        assert_same(result, tensor)
        result.zero_()


# Deliberate bug: `new` in `leaf.rs` leaves strides that say nothing as they are.
def elements(tensor):
    """What a tensor has in memory."""
    tensor = tensor.detach()
    if tensor.layout == torch.sparse_coo:
        return tensor._values()
    return tensor if tensor.layout == torch.strided else tensor.values()


# Deliberate bug: `copy_by_torch` leaves `copy` out; it leaves `no_grad` out.
@pytest.mark.parametrize(
    "tensor",
    [
        torch.ones(3, dtype=torch.complex64).conj(),
        (torch.ones(3, dtype=torch.complex64, requires_grad=True) * 1).conj(),
        torch.ones(3, dtype=torch.complex64).conj().imag,
        torch.eye(3).to_sparse(),
        torch.eye(3).to_sparse().requires_grad_(),
        torch.eye(3).to_sparse_csr(),
        torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
        torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
    ],
    ids=["conjugated", "conjugated with a gradient", "negated", "sparse", "sparse with a gradient", "csr", "quantised", "nested"],
)
def test_what_pytorch_copies_is_copied_where_it_is(tensor):
    result = copied([tensor])[0]
    assert result is not tensor and not result.requires_grad
    assert result.layout == tensor.layout and result.dtype == tensor.dtype
    held, original = elements(result), elements(tensor)
    assert torch.equal(held, original) and held.data_ptr() != original.data_ptr()
    assert transship.start_copy([tensor], "cpu").get()[0] is tensor


def test_arrays_in_and_out():
    arrays = [np.arange(3)[1:2][::-1], np.arange(6.0).reshape(2, 3), np.arange(4)[::-1], np.arange(12).reshape(3, 4)[:, ::2], np.array(5, np.int8), np.zeros((0, 2))]
    read_only = np.arange(3)
    read_only.flags.writeable = False
    for result, array in zip(copied([*arrays, read_only], like="numpy"), [*arrays, read_only]):
        assert isinstance(result, np.ndarray) and result.dtype == array.dtype
        np.testing.assert_array_equal(result, array)
    assert all(isinstance(result, torch.Tensor) for result in copied(arrays))


# Deliberate bug: `settled` in `ours.rs` leaves out what is there already; `convert` in `_copy.py` leaves `detach` out.
def test_what_is_there_already_comes_back_as_asked_for():
    tensor, array = torch.arange(3.0), np.arange(3.0)
    tree = [tensor, array, torch.ones(2, requires_grad=True), torch.ones(2, dtype=torch.complex64).conj()]
    arrays = transship.start_copy(tree, "cpu", like="numpy").get()
    assert all(type(one) is np.ndarray for one in arrays) and arrays[1] is array
    arrays[0][0] = 5
    assert tensor[0] == 5
    tensors = transship.start_copy(tree, "cpu", like="torch").get()
    assert all(type(one) is torch.Tensor for one in tensors) and tensors[0] is tensor
    assert tensors[1].data_ptr() == array.ctypes.data
    assert type(transship.start_copy(torch.eye(2).conj(), "cpu", copy=True, like="numpy").get()) is np.ndarray
    assert all(one is other for one, other in zip(transship.start_copy(tree, "cpu", like="dlpack").get(), tree))
    with pytest.raises(TypeError, match="like='numpy'") as raised:
        transship.start_copy({"a": torch.eye(2).to_sparse()}, "cpu", like="numpy")
    if sys.version_info >= (3, 11):
        assert raised.value.__notes__ == ["in the structure to be copied, at ['a']"]


# Deliberate bug: `is_masked` in `ours.rs` is never true.
def test_masked_arrays_do_not_lose_their_masks():
    masked = np.ma.array([1.0, 999.0], mask=[False, True])
    assert transship.start_copy([masked], "cpu").get()[0] is masked
    assert transship.start_copy([masked], "cpu", like="numpy").get()[0] is masked
    for options in ({"copy": True}, {"copy": True, "like": "numpy"}, {"like": "torch"}):
        with pytest.raises(TypeError, match="mask"):
            transship.start_copy([masked], "cpu", **options)


def test_any_tensor_of_dlpack():
    class Foreign:
        """Of another library, of before version 1.0."""

        def __init__(self, array):
            self.array = array

        def __dlpack__(self, stream=None):
            return self.array.__dlpack__()

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    assert_same(copied(Foreign(np.arange(5))), torch.arange(5))


def test_tensors_of_transship():
    tensor = copied(torch.arange(6, dtype=torch.int16).reshape(2, 3), like="dlpack")
    assert isinstance(tensor, transship.Tensor)
    assert (tensor.shape, tensor.strides, tensor.dtype, tensor.device, tensor.nbytes) == ((2, 3), (3, 1), "int16", "host", 12)
    assert_same(torch.from_dlpack(tensor), torch.arange(6, dtype=torch.int16).reshape(2, 3))
    array = np.from_dlpack(tensor)
    assert array.tolist() == [[0, 1, 2], [3, 4, 5]]
    again = copied(tensor, like="dlpack")
    del tensor
    assert array.tolist() == np.from_dlpack(again).tolist()
    assert transship.start_copy(again, "cpu").get() is again
    with pytest.raises(BufferError):
        again.__dlpack__(dl_device=(2, 0))
    with pytest.raises(BufferError):
        again.__dlpack__(copy=True)


def test_capsules_that_nobody_consumes():
    tensor = copied(torch.ones(3), like="dlpack")
    for version in (None, (0, 8), (1, 0), (1, 3)):
        del version
        tensor.__dlpack__(max_version=None)
        tensor.__dlpack__(max_version=(1, 0))


@pytest.mark.parametrize("array", [np.zeros(2, ">f4"), np.array([object()]), np.array(["text"])])
def test_arrays_that_cannot_be_copied_are_named(array):
    with pytest.raises(TypeError) as raised:
        copied({"a": [1, (array,)]}, like="numpy")
    if sys.version_info >= (3, 11):
        assert raised.value.__notes__ == ["in the structure to be copied, at ['a'][1][0]"]


@pytest.mark.parametrize(
    "options",
    [{"memory": "cuda"}, {"like": "tensorflow"}, {"memory": "torch", "like": "numpy"}],
)
def test_options_that_are_none(options):
    with pytest.raises(ValueError):
        transship.start_copy([], "cpu", **options)
    with pytest.raises(ValueError):
        transship.start_copy([], "cuda:0", like="numpy")


# Deliberate bug: `number_of` in `_copy.py` lets every number through.
@pytest.mark.parametrize("option", ["alignment", "max_chunk_bytes"])
@pytest.mark.parametrize("number", [-1, 2**64])
def test_numbers_of_bytes_that_are_none(option, number):
    with pytest.raises(ValueError, match=f"{option}={number}"):
        transship.start_copy([torch.ones(1)], "cpu", **{option: number})


# Deliberate bugs: `number_of` in `_copy.py` asks for no index; `switch` gives what it got.
@pytest.mark.parametrize("start", [transship.start_copy, transship.start_copy_to_all])
@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("alignment", "16"),
        ("max_chunk_bytes", 2.5),
        ("packing", 1),
        ("pinned", "yes"),
        ("background", None),
        ("copy", np.ones(1)),
    ],
)
def test_options_of_other_types_are_named(start, option, value):
    device = "cpu" if start is transship.start_copy else ["cpu"]
    with pytest.raises(TypeError, match=re.escape(f"{option}={value!r}")):
        start([torch.ones(1)], device, **{option: value})


def test_copies_into_what_is_there_name_their_options_too():
    with pytest.raises(TypeError, match="pinned=0"):
        transship.start_copy_into([torch.ones(1)], [torch.zeros(1)], pinned=0)


def test_options_of_numpy_are_taken():
    tensor = torch.ones(1)
    copied = transship.start_copy([tensor], "cpu", copy=np.bool_(True), alignment=np.int64(64)).get()
    assert copied[0] is not tensor


class WithoutNotes(Exception):
    """As exceptions were before Python 3.11."""

    add_note = None


# Deliberate bug: `note` in `errors.rs` gives up where there are no notes.
@pytest.mark.parametrize("arguments", [("broken",), ("broken", 7)])
def test_paths_are_said_without_notes(arguments):
    class Broken:
        def __dlpack__(self, **_):
            raise WithoutNotes(*arguments)

        def __dlpack_device__(self):
            return (1, 0)

    with pytest.raises(WithoutNotes) as raised:
        copied({"a": [Broken()]})
    assert raised.value.args == ("broken; in the structure to be copied, at ['a'][0]", *arguments[1:])


# Deliberate bug: `find_out` in `ours.rs` asks for one of both.
def test_objects_without_a_device_go_through():
    class Half:
        def __dlpack__(self, **_):
            raise AssertionError

    half = Half()
    assert copied([half])[0] is half


def test_arrays_of_what_is_no_number_say_what_to_do():
    for array, name in [(np.array(["a"]), "<U1"), (np.array([None]), "object"), (np.array(["2026-01-01"], "datetime64[D]"), "datetime64")]:
        with pytest.raises(TypeError, match=f"a <class 'numpy.ndarray'> of {re.escape(name)}.*; give it other elements .*tolist.*take it out") as raised:
            copied({"ids": [array]})
        assert "['ids'][0]" in str(raised.value) + "".join(getattr(raised.value, "__notes__", []))
        assert copied({"ids": [array.tolist()]})["ids"][0] == array.tolist()


def test_devices_that_hold_no_tensors_of_python_say_which_do():
    with pytest.raises(transship.Error, match='cannot hold tensors of Python; name "cpu"'):
        transship.start_copy([], "mps:0")


def test_streams_that_are_none_are_named():
    with pytest.raises(TypeError, match=r"wait_on\(None\)"):
        transship.start_copy([], "cpu").wait_on(None)


# Deliberate bug: `name_of` in `_copy.py` gives numbers as they are.
def test_a_number_is_a_device_of_cuda():
    with pytest.raises(transship.Error, match="cuda"):
        transship.start_copy([np.ones(1)], 77, memory="transship")
    with pytest.raises(transship.Error, match="cuda"):
        transship.load_safetensors([], 77)
    with pytest.raises(ValueError, match="device=-1"):
        transship.start_copy([np.ones(1)], -1)


def test_devices_that_are_not_there():
    with pytest.raises(transship.Error) as raised:
        transship.start_copy([torch.ones(1)], "nonsense:x")
    assert raised.value.kind == "InvalidInput"
    with pytest.raises(transship.Error):
        transship.start_copy([np.ones(1)], "cuda:77", memory="transship", like="dlpack")
    assert isinstance(raised.value, RuntimeError)


# Deliberate bug: `place_of` of `named_device.rs` in the place of `opened`: PyTorch speaks of its own calls.
@pytest.mark.parametrize("tree", [[torch.ones(1)], []])
@pytest.mark.parametrize("options", [{}, {"cast": "float16"}])
def test_devices_that_are_not_there_have_one_error(tree, options):
    with pytest.raises(transship.Error, match="cuda"):
        transship.start_copy(tree, "cuda:77", **options)
    if not torch.cuda.is_available():
        with pytest.raises(transship.Error, match="cuda"):
            transship.start_copy(tree, "cuda", **options)


# Deliberate bugs: `of_files` in `errors.rs` sets no kind; the class has none.
def test_each_error_has_a_kind():
    with pytest.raises(transship.Error) as raised:
        transship.load_safetensors("/nonexistent.safetensors", "cpu")
    assert raised.value.kind == "InvalidInput"
    assert transship.Error("of Python's").kind == "InvalidInput"


# Deliberate bug: `name_of` in `_copy.py` knows one name of the host.
@pytest.mark.parametrize("name", ["cpu", "cpu:0", "host", torch.device("cpu"), torch.device("cpu", 0)])
def test_names_of_the_host(name):
    assert isinstance(transship.start_copy([np.ones(2)], name, like="numpy", copy=True).get()[0], np.ndarray)


def test_an_owner_that_fails_is_passed_on():
    class Broken:
        def __dlpack__(self, **_):
            raise KeyError("broken")

        def __dlpack_device__(self):
            return (1, 0)

    with pytest.raises(KeyError):
        copied([torch.ones(1), Broken()])


def test_a_timeout_must_be_a_time():
    handle = transship.start_copy([torch.ones(1)], "cpu", copy=True)
    for timeout in (-1.0, float("nan")):
        with pytest.raises(ValueError):
            handle.get(timeout)
    handle.get(timeout=10)
    assert handle.progress() is None and handle.report() is None and not handle.cancel()


def test_cancelled_copies_say_so():
    cancelled = 0
    for _ in range(100):
        handle = large()
        # It may be done already.
        if handle.cancel():
            with pytest.raises(transship.Error) as raised:
                handle.get()
            assert raised.value.kind == "Cancelled" and handle.ready()
            cancelled += 1
            break
        handle.get()
    assert cancelled


# Deliberate bug: what is done and was not fetched is given up.
def test_what_is_done_is_not_cancelled():
    handle = transship.start_copy([torch.ones(5), torch.ones(6)], "cpu", copy=True)
    while not handle.ready():
        time.sleep(0.001)
    assert not handle.cancel()
    assert handle.get()[1].sum() == 6


# As sharded training leaves it. PyTorch ends the process that reads such a tensor. Deliberate bug: it is asked to copy it.
def test_a_storage_without_memory_is_refused():
    given_up = torch.ones(4, 3)
    given_up.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match="no memory") as raised:
        transship.start_copy({"a": [torch.ones(2), given_up]}, "cpu", copy=True)
    assert "['a'][1]" in "".join([str(raised.value), *getattr(raised.value, "__notes__", [])]).replace('"', "'")
    assert transship.start_copy(torch._efficientzerotensor((4, 3)), "cpu", copy=True).get().sum() == 0


def test_advice_is_given_in_the_words_of_python():
    with pytest.raises(TypeError, match="derived from it"):
        transship.register_container(dict, lambda value: ([], None), lambda context, items: None)

    class Flat:
        pass

    transship.register_container(Flat, lambda value: None, lambda context, items: None)
    with pytest.raises(TypeError, match="a list and a context, and not None"):
        transship.start_copy([Flat()], "cpu")


def test_progress_and_report():
    handle = transship.start_copy([torch.ones(5), torch.ones(6)], "cpu", copy=True)
    arrived, total = handle.progress()
    # Two leaves of 20 and 24 bytes, and what is between them.
    assert 0 <= arrived <= total == 56
    assert "CopyReport" in handle.report()[0]


def test_awaiting():
    async def main():
        handles = [transship.start_copy([torch.full((n,), 2.0)] * 2, "cpu", copy=True) for n in (1, 100, 1 << 20)]
        return await asyncio.gather(*handles)

    assert [result[0].numel() for result in asyncio.run(main())] == [1, 100, 1 << 20]


def large():
    """A copy that is not done at once."""
    return transship.start_copy([torch.ones(1 << 22) for _ in range(4)], "cpu", copy=True)


# Deliberate bug: `wake_all` in `progress.rs` wakes the last one only.
def test_many_tasks_await_one_handle():
    async def main():
        handle = large()
        return await asyncio.wait_for(asyncio.gather(*[awaited(handle) for _ in range(5)]), 30)

    results = asyncio.run(main())
    assert all(result[3] is results[0][3] for result in results)


def test_loops_of_several_threads_await_one_handle():
    handle, results = large(), []

    def loop():
        results.append(asyncio.run(asyncio.wait_for(awaited(handle), 30)))

    threads = [threading.Thread(target=loop) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4 and all(result[3] is results[0][3] for result in results)


# Deliberate bug: `leave` in `progress.rs` removes all wakers.
def test_a_task_that_is_cancelled_takes_no_other_with_it():
    async def main():
        handle = large()
        tasks = [asyncio.ensure_future(awaited(handle)) for _ in range(3)]
        await asyncio.sleep(0)
        # They have begun to wait, and have asked.
        tasks[1].cancel()
        tasks.append(asyncio.ensure_future(awaited(handle)))
        await asyncio.sleep(0)
        tasks[3].cancel()
        return await asyncio.wait_for(asyncio.gather(tasks[0], tasks[2]), 30)

    first, last = asyncio.run(main())
    assert first[3] is last[3]


def test_streams_are_for_devices():
    with pytest.raises(ValueError):
        transship.start_copy([torch.ones(1)], "cpu", copy=True).wait_on(0)


# Deliberate bug: a second waiter in `progress.rs` does not wait for the first one.
def test_many_threads_with_one_handle():
    handle = transship.start_copy([torch.ones(1 << 22), torch.ones(3)], "cpu", copy=True)
    results = []
    threads = [threading.Thread(target=lambda: results.append(handle.get()[1])) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 8 and all(result is results[0] for result in results)


@pytest.mark.skipif(bool(sysconfig.get_config_var("Py_GIL_DISABLED")), reason="without a GIL what a dict holds is taken at once")
def test_a_dict_that_changes_meanwhile():
    data = {}

    class Meddler:
        def __dlpack_device__(self):
            data["another"] = 1
            return (1, 0)

        def __dlpack__(self, **options):
            return np.ones(1).__dlpack__(**options)

    data["first"] = Meddler()
    with pytest.raises(RuntimeError, match="changed"):
        copied(data)


def run(program):
    return subprocess.run([sys.executable, "-W", "ignore::DeprecationWarning", "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=120)


def test_without_pytorch():
    program = """
        import sys
        import numpy as np
        import transship
        result = transship.start_copy({"a": np.arange(3), "b": [np.ones(2), "text"]}, "cpu", copy=True).get()
        assert isinstance(result["a"], np.ndarray) and result["a"].tolist() == [0, 1, 2] and result["b"][1] == "text"
        assert transship.backend_info()["torch"] is None and "torch" not in sys.modules
    """
    done = run(program)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_interrupt_ends_waiting_and_not_the_copy():
    program = """
        import signal, threading, os, time
        import numpy as np, transship
        signal.signal(signal.SIGINT, signal.default_int_handler)  # Started in the background, a program ignores it.
        handle = transship.start_copy([np.ones(1 << 24), np.ones(3)], "cpu", copy=True)
        try:
            threading.Timer(0.05, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
            while True:
                handle.get()
        except KeyboardInterrupt:
            pass
        assert handle.get()[1].sum() == 3
    """
    done = run(program)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_forked_child_is_told_so():
    program = """
        import os
        import numpy as np, transship
        transship.start_copy([np.ones(1 << 20), np.ones(3)], "cpu", copy=True).get()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                result = transship.start_copy([np.ones(4), np.ones(3)], "cpu", copy=True).get()
                status = 0 if result[1].sum() == 3 else 2
            except transship.Error as error:
                status = 0 if "fork" in str(error) else 3
            os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert transship.start_copy([np.ones(4), np.ones(3)], "cpu", copy=True).get()[0].sum() == 4
    """
    done = run(program)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_forked_child_ends_as_any_other():
    program = """
        import os, sys
        import numpy as np, transship
        handle = transship.start_copy([np.ones(1 << 20), np.ones(3)], "cpu", copy=True)
        handle.get()
        child = os.fork()
        if child == 0:
            sys.exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    """
    done = run(program)
    assert (done.returncode, done.stderr) == (0, "")


async def awaited(handle):
    return await handle


def test_awaiting_beside_a_thread_that_waits():
    async def main():
        handle = transship.start_copy([torch.ones(1 << 22), torch.ones(3)], "cpu", copy=True)
        waiting = asyncio.to_thread(handle.get)
        first, second = await asyncio.wait_for(asyncio.gather(waiting, awaited(handle)), 60)
        return first[1] is second[1]

    assert asyncio.run(main())


def test_the_interpreter_ends_with_copies_in_flight():
    program = """
        import numpy as np, transship
        kept = [transship.start_copy([np.ones(1 << 20), np.ones(3)], "cpu", copy=True) for _ in range(10)]
        dropped = transship.start_copy([np.ones(1 << 20), np.ones(3)], "cpu", copy=True)
        del dropped
    """
    done = run(program)
    assert (done.returncode, done.stderr) == (0, "")


# Deliberate bug: `_is_of_numpy_alone` in `_copy.py` says no, which ends the process for the first three.
@pytest.mark.parametrize("like", ["torch", "dlpack", "numpy", None])
def test_arrays_that_only_numpy_can_have_in_place(like, tmp_path):
    read_only = np.arange(4.0)
    read_only.flags.writeable = False
    file = tmp_path / "array"
    np.arange(5, dtype=np.float32).tofile(file)
    misaligned = np.frombuffer(bytearray(1) + np.arange(3.0).tobytes(), np.uint8)[1:].view(np.float64)
    arrays = [
        np.arange(4.0)[::-1],
        np.arange(12).reshape(3, 4)[:, ::-1],
        np.ones((2, 3, 4), np.uint8)[::-1, :, ::-2],
        read_only,
        np.memmap(file, np.float32, mode="r"),
        np.frombuffer(b"abcd", np.uint8),
        misaligned,
    ]
    for array in arrays:
        before = array.copy()
        [there] = transship.start_copy([array], "cpu", like=like).get()
        if like in ("numpy", "dlpack"):
            assert there is array
            continue
        if like == "torch":
            assert type(there) is torch.Tensor and there.tolist() == before.tolist()
            there.zero_()
        assert (array == before).all()


def test_an_array_that_can_be_shared_is():
    array = np.arange(4.0)
    [there] = transship.start_copy([array], "cpu", like="torch").get()
    there[0] = 7
    assert array[0] == 7


def test_one_device_as_a_list_of_them():
    with pytest.raises(TypeError, match=r"a list of devices, such as \['cpu'\]"):
        transship.start_copy_to_all([torch.ones(1)], "cpu")


# Deliberate bug: `_installed_ml_dtypes` in `_copy.py` looks each time.
def test_what_is_not_installed_is_looked_for_once():
    program = """
        import importlib, sys
        import numpy as np, transship

        looked = []
        class Finder:
            @staticmethod
            def find_spec(name, path=None, target=None):
                looked.append(name)
        sys.meta_path.insert(0, Finder)
        sys.modules.pop("ml_dtypes", None)
        for _ in range(3):
            transship.start_copy([np.ones(3)], "cpu", copy=True, like="numpy").get()
        assert looked.count("ml_dtypes") <= 1, looked
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]


# Deliberate bug: `outside_of_modes` in `torch/mod.rs` looks at once: then the ways that are fast are left for good.
def test_ways_do_not_depend_on_the_first_call():
    program = """
        import sys, torch, transship
        from torch._subclasses.fake_tensor import FakeTensorMode
        if "fake" in sys.argv:
            with FakeTensorMode():
                transship.start_copy([1], "cpu").get()
        transship.start_copy([torch.ones(1)], "cpu", copy=True).get()
        print(transship.backend_info()["torch"])
    """
    done = run(program), run(program.replace("sys.argv", "['fake']"))
    assert [one.returncode for one in done] == [0, 0], done[1].stderr
    assert done[0].stdout == done[1].stdout != ""


# Deliberate bug: `get_or_make` in `once.rs` holds the cell while it makes what that has: the program waits for itself.
def test_a_mode_that_copies_may_see_the_first_call():
    program = """
        import torch, transship

        seen = []
        class CopiesAll(torch.overrides.TorchFunctionMode):
            def __torch_function__(self, function, types, args=(), kwargs=None):
                result = function(*args, **(kwargs or {}))
                if isinstance(result, torch.Tensor):
                    seen.extend(transship.start_copy([result], "cpu", copy=True).get())
                return result

        tensor = torch.ones(3)
        with CopiesAll():
            print(transship.start_copy([tensor], "cpu", copy=True).get()[0].tolist(), len(seen) > 0)
    """
    done = run(program)
    assert (done.returncode, done.stdout) == (0, "[1.0, 1.0, 1.0] True\n"), done.stderr


# Deliberate bug: an error of `is_pinned` in `kinds.rs` is passed on, for large tensors alone.
@pytest.mark.parametrize("numbers", [10, 1 << 17])
def test_modes_that_refuse_questions_refuse_no_copy(numbers):
    from torch._subclasses.fake_tensor import FakeTensorMode

    tensor = torch.arange(numbers)
    with FakeTensorMode():
        result = copied([tensor])
    assert_same(result[0], tensor)


# Deliberate bugs: `note` in `room.rs` gives no room back; `start_copy_as_forebear` calls it for devices of the library alone.
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_handles_of_small_structures_keep_no_room_for_large_ones():
    done = run(
        """
        import os, pathlib
        import torch, transship, transship.multi_tensor_copier

        def resident():
            return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20

        large, small, kept = [{"key": tensor} for tensor in [torch.zeros(1)] * 20_000], [torch.ones(2)], []
        others = []
        for round_ in range(60):
            transship.start_copy(large, "cpu", copy=True).get()
            kept.append(transship.start_copy(small, "cpu", copy=True))
            transship.start_copy(large, "cpu", copy=True).get()
            # The library has no such device.
            others.append(transship.multi_tensor_copier.start_copy(small, "meta"))
            if round_ == 9:
                before = resident()
        print(resident() - before, all(handle.get()[0].tolist() == [1, 1] for handle in kept))
        """
    )
    assert not done.stderr, done.stderr
    grown, are_right = done.stdout.split()
    assert int(grown) < 50 and are_right == "True"
