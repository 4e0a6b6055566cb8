"""Structures that other threads change while they are copied. Without a GIL these threads run at the same time."""

import collections
import subprocess
import sys
import sysconfig
import threading
import time

import pytest
import torch

import transship
from transship.multi_tensor_copier import start_copy

SECONDS = 0.6
HAS_GIL = not sysconfig.get_config_var("Py_GIL_DISABLED")
# Without a GIL `list(ordered.items())` ends the process of CPython 3.14.7 while another thread changes it.
KINDS = [dict, collections.OrderedDict] if HAS_GIL else [dict]


def at_once(*works):
    """Runs all of them again and again for a while, each on a thread of its own. What one raises is raised."""
    end, raised, begin = time.monotonic() + SECONDS, [], threading.Barrier(len(works))

    def run(work):
        begin.wait()
        while time.monotonic() < end and not raised:
            try:
                work()
            except BaseException as error:
                raised.append(error)

    threads = [threading.Thread(target=run, args=[work]) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if raised:
        raise raised[0]


@pytest.mark.skipif(HAS_GIL, reason="this Python has a GIL")
def test_the_module_does_not_ask_for_a_gil():
    # Other modules that the tests import may do so.
    program = "import sys, torch, numpy, transship; from transship import multi_tensor_copier; assert not sys._is_gil_enabled()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]


def changed(error):
    """Whether this says that a structure was changed while it was read. An OrderedDict of Python's says so by a key."""
    return isinstance(error, KeyError) or any(text in str(error) for text in ("changed", "out of range", "not as many", "mutated"))


def copies_of(make, front):
    """Copies the structure, and looks at whether each tensor has the bytes of one that was there."""

    def copy():
        try:
            result = (transship.start_copy(make(), "cpu", copy=True) if front else start_copy(make(), "cpu")).get()
        except (RuntimeError, IndexError, KeyError) as error:
            if changed(error):
                return
            raise
        values = result.values() if isinstance(result, dict) else result
        for value in values:
            if isinstance(value, torch.Tensor):
                assert value.unique().numel() == 1 and value.numel() == 50 + int(value[0]) % 3

    return copy


def tensor_of(number):
    return torch.full((50 + number % 3,), number)


# Deliberate bug: without a GIL, `add_dict` in `tree.rs` goes by `PyDict_Next`, and `expect` in `torch/direct.rs` looks at the list: the process ends.
@pytest.mark.parametrize("front", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_dicts_that_change(kind, front):
    held = kind((number, tensor_of(number)) for number in range(40))

    def change():
        for number in range(40):
            held[number] = tensor_of(number + 3)
            held.pop((number * 7) % 40, None)
            held[number + 100] = "text"
            held.pop(number + 100, None)

    at_once(change, copies_of(lambda: held, front), copies_of(lambda: held, front))


@pytest.mark.parametrize("front", [True, False])
def test_lists_that_change(front):
    held = [tensor_of(number) for number in range(40)]

    def change():
        for number in range(40):
            held[number % len(held)] = tensor_of(number)
            held.append(tensor_of(number))
            del held[(number * 5) % len(held)]
            if number % 13 == 0:
                held[:] = [tensor_of(number) for number in range(30 + number)]

    at_once(change, copies_of(lambda: held, front), copies_of(lambda: held, front))


def test_all_threads_have_the_same_results():
    tree = {"a": [tensor_of(number) for number in range(200)], "b": {"c": tensor_of(1)}}
    latest = {"handle": transship.start_copy(tree, "cpu", copy=True)}
    seen = []

    def get():
        handle = latest["handle"]
        seen.append((handle, [id(tensor) for tensor in handle.get()["a"]]))

    def start():
        latest["handle"] = transship.start_copy(tree, "cpu", copy=True)

    at_once(get, get, get, start)
    first = {}
    for handle, tensors in seen:
        assert first.setdefault(id(handle), tensors) == tensors


def test_threads_fill_memory_of_their_own():
    def fill(number):
        held = [torch.zeros(500), torch.zeros(3, dtype=torch.int64)]

        def once():
            tree = [torch.full((500,), float(number)), torch.full((3,), number)]
            transship.start_copy_into(tree, held).get()
            assert (held[0] == number).all() and held[1].tolist() == [number] * 3

        return once

    at_once(*(fill(number) for number in range(4)))


def test_threads_cast_and_convert():
    array = torch.arange(64.0).reshape(8, 8)

    def once():
        [result] = transship.start_copy([array], "cpu", cast={torch.float32: torch.float16}, like="numpy").get()
        assert (result == array.numpy()).all()

    at_once(once, once, once)
