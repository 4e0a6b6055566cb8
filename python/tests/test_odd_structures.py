"""Structures that are odd, or change while they are looked at: an error, or the right copy, and never memory that is not theirs."""

import ctypes
import gc
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

import transship
from trees import assert_copied, assert_same, copy_all


NESTED = """
import sys, threading
import numpy as np
import transship

class Derived(list):
    pass

KINDS = [lambda held: [held], lambda held: (held,), lambda held: {"key": held}, lambda held: Derived([held])]
failed = []

def nested(depth, kind):
    tree = np.ones(3)
    for _ in range(depth):
        tree = kind(tree)
    return tree

def innermost(tree, depth):
    for _ in range(depth):
        (tree,) = tree.values() if isinstance(tree, dict) else tree
    return tree

def check():
    endless = []
    endless.append(endless)
    for kind in KINDS:
        tree, into = nested(1000, kind), nested(1000, kind)
        innermost(into, 1000).fill(0)
        results = [
            transship.start_copy(tree, "cpu", like="numpy", copy=True).get(),
            transship.start_copy(tree, "cpu", like="numpy", cast=lambda path, leaf: np.float32 if len(path) == 1000 else None).get(),
            transship.start_copy_into(tree, into).get(),
        ]
        assert [innermost(result, 1000).sum() for result in results] == [3, 3, 3]
        for deeper in (nested(1001, kind), nested(200_000, kind), endless):
            for call in (
                lambda: transship.start_copy(deeper, "cpu", copy=True),
                lambda: transship.start_copy_to_all(deeper, ["cpu"], copy=True),
                lambda: transship.start_copy_into(deeper, []),
                lambda: transship.start_copy_into([], deeper),
            ):
                try:
                    call()
                except RecursionError as error:
                    assert "1000 containers" in str(error), error
                else:
                    raise AssertionError("no error")

def work():
    try:
        check()
    except BaseException as error:
        failed.append(error)

# What Python itself allows is far more than the stack has, as it is by default from 3.12 on.
sys.setrecursionlimit(1_000_000)
threading.stack_size(4 << 20)
thread = threading.Thread(target=work)
thread.start()
thread.join()
if failed:
    raise failed[0]
"""


SMALL_STACKS = NESTED.split("def check")[0] + """
def check(calls, stack):
    def run():
        for call in calls:
            try:
                call()
            except RecursionError as error:
                failed.append(error)

    threading.stack_size(stack << 10)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()

sys.setrecursionlimit(1_000_000)
for kind in KINDS:
    tree, into = nested(1000, kind), nested(1000, kind)
    handle = transship.start_copy(tree, "cpu", like="numpy", copy=True)
    for stack in (256, 512, 768, 1024):
        check([
            lambda: transship.start_copy(tree, "cpu", copy=True),
            lambda: transship.start_copy(tree, "cpu", cast=lambda path, leaf: None),
            lambda: transship.start_copy_into(tree, into),
            handle.get,
        ], stack)
    assert innermost(handle.get(), 1000).sum() == 3
assert failed
for error in failed:
    assert "the stack of this thread" in str(error), error
"""


# Deliberate bug: `check_stack` in `tree.rs` looks at nothing.
def test_the_stack_of_a_thread_may_be_smaller():
    done = subprocess.run([sys.executable, "-c", SMALL_STACKS], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])


# Deliberate bug: `add` in `tree.rs` does not look at `MAX_DEPTH`.
def test_what_is_nested_too_deeply_is_an_error_and_not_the_end_of_the_stack():
    done = subprocess.run([sys.executable, "-c", NESTED], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]


class Lying(torch.Tensor):
    """It has more elements than there are, of another type, and elsewhere."""

    shape = property(lambda self: torch.Size([1 << 30]))
    dtype = property(lambda self: torch.float64)
    device = property(lambda self: torch.device("meta"))
    layout = property(lambda self: torch.sparse_coo)
    is_nested = property(lambda self: True)

    def stride(self):
        return (1,)

    def data_ptr(self):
        return 64

    def storage_offset(self):
        return 1 << 40


class Intercepting(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, arguments=(), named=None):
        if getattr(function, "__name__", "") in ("data_ptr", "stride", "__get__"):
            raise AssertionError("the class was asked")
        return super().__torch_function__(function, types, arguments, named or {})


# Deliberate bug: `by_attributes` in `torch/read.rs` asks the tensor.
def test_what_a_class_says_of_its_tensors_is_not_believed():
    plain = torch.arange(6.0).reshape(2, 3)
    lying, intercepting = plain.as_subclass(Lying), plain.as_subclass(Intercepting)
    for tree in ([lying], [intercepting], [lying, intercepting, plain]):
        for result in copy_all(tree).get():
            assert_same(result, plain)
        for result in transship.start_copy(tree, "cpu", copy=True, cast=None).get():
            assert_same(result, plain)
    held = torch.zeros(2, 3)
    transship.start_copy_into([plain], [held.as_subclass(Lying)]).get()
    assert_same(held, plain)


# Deliberate bug: `is_nowhere` in `leaf.rs` is never true.
@pytest.mark.parametrize("behind", [3, 1 << 31])
def test_a_part_of_a_storage_without_memory_is_not_believed_to_be_at_its_offset(behind):
    part = torch._efficientzerotensor((behind + 7,))[behind:]
    assert part.data_ptr() == 4 * behind
    for tree in ([part], [part, torch.ones(2)], {"a": [part.reshape(7, 1)]}):
        for result in (copy_all(tree).get(), transship.start_copy(tree, "cpu", copy=True).get()):
            assert_copied(result, tree)
    with pytest.raises(TypeError, match="without plain memory"):
        transship.start_copy_into([torch.ones(7)], [part])


def test_nor_is_it_by_what_every_pytorch_has():
    slow = {**os.environ, "TRANSSHIP_TORCH": "slow"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, "-k", "not_believed"]
    done = subprocess.run(command, env=slow, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-3000:]


class Looking:
    """When it is made anew it looks at whatever lists and tuples there are."""

    seen = 0

    def __init__(self, held):
        self.held = held

    @classmethod
    def made(cls, context, items):
        for found in gc.get_objects():
            if type(found) in (list, tuple) and len(found) == 12_347:
                cls.seen += 1
                # What is not set yet cannot be looked at: that ends the process.
                assert found[-1] is not None
        return cls(items)


transship.register_container(Looking, lambda looking: (looking.held, None), Looking.made)


LOOKED_AT = """
import torch, transship
from test_odd_structures import Looking

for kind in (list, tuple):
    tree = kind([torch.ones(1), Looking([torch.ones(2)]), *[torch.ones(1)] * 12_345])
    handle = transship.start_copy(tree, "cpu", copy=True)
    del tree
    result = handle.get()
    assert type(result) is kind and len(result) == 12_347
    assert type(result[1]) is Looking and result[1].held[0].tolist() == [1, 1] and result[-1].tolist() == [1]
    del result
    assert Looking.seen == 0, Looking.seen
"""


# Deliberate bug: `filled` in `tree.rs` makes the container first.
def test_a_container_is_not_seen_before_it_is_full():
    done = subprocess.run([sys.executable, "-c", LOOKED_AT], cwd=os.path.dirname(__file__), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]


class Changing:
    """When it is taken apart it changes what it likes."""

    def __init__(self, change):
        self.change = change

    def taken_apart(self):
        self.change()
        gc.collect()
        return [torch.zeros(1)], None


transship.register_container(Changing, Changing.taken_apart, lambda _, items: items)


# Deliberate bug: `take_entries` in `tree.rs` has no references of its own to what it takes (`from_owned_ptr`).
@pytest.mark.parametrize("at", [0, 1, 6, 7, 8, 15])
def test_values_of_a_dict_may_be_replaced_while_it_is_read(at):
    def replace():
        for number in range(at + 1, 20):
            tree[number] = torch.full((1000,), 100 + number)

    tree = {number: torch.full((1000,), number) for number in range(20)}
    tree[at] = Changing(replace)
    result = transship.start_copy(tree, "cpu", copy=True).get()
    assert list(result) == list(range(20)) and result[at][0].tolist() == [0]
    for number in range(20):
        if number != at:
            assert result[number].tolist() in ([number] * 1000, [100 + number] * 1000 if number > at else None)


@pytest.mark.parametrize("at", [0, 6, 7, 8])
@pytest.mark.parametrize("change", [dict.clear, lambda tree: tree.popitem(), lambda tree: tree.update(more=1)], ids=["clear", "less", "more"])
def test_a_dict_that_gets_another_size_while_it_is_read_is_an_error(at, change):
    tree = {number: torch.full((1000,), number) for number in range(20)}
    tree[at] = Changing(lambda: change(tree))
    with pytest.raises(RuntimeError, match="changed size"):
        transship.start_copy(tree, "cpu", copy=True)


class Described(ctypes.Structure):
    """DLPack's DLTensor."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("dtype", ctypes.c_uint8 * 4),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    ]


class Foreign:
    """An array of numpy's, of a library that says something else of it."""

    def __init__(self, name, change, **named):
        self.array, self.name, self.change, self.named = np.ones(5), name, change, named

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, **_):
        capsule = self.array.__dlpack__(**self.named)
        get = ctypes.pythonapi.PyCapsule_GetPointer
        get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        self.change(get(capsule, self.name))
        return capsule


def test_an_address_beyond_all_memory_is_an_error():
    def shift(address):
        Described.from_address(address).byte_offset = 2**64 - 8

    with pytest.raises(TypeError):
        transship.start_copy([Foreign(b"dltensor", shift)], "cpu", copy=True)


@pytest.mark.skipif(int(np.__version__.split(".")[0]) < 2, reason="this numpy has no versions of DLPack")
def test_another_version_of_dlpack_is_an_error():
    def become_another(address):
        ctypes.c_uint32.from_address(address).value = 2

    foreign = Foreign(b"dltensor_versioned", become_another, max_version=(1, 0))
    with pytest.raises(BufferError, match="DLPack 2"):
        transship.start_copy([foreign], "cpu", copy=True)
    with pytest.raises(BufferError, match="DLPack 2"):
        transship.start_copy_into([np.zeros(5)], [foreign])
