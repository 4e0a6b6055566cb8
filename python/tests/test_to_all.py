"""``transship.start_copy_to_all``, and ``cast=`` with it, on the host."""

import gc
import random
import time
import weakref

import numpy as np
import pytest
import torch

import transship
from trees import assert_copied, assert_same, random_tree, seeds


def test_each_gets_a_structure_of_its_own():
    tree = {"a": [torch.arange(5), np.ones(3)], "b": "text", "large": torch.randn(300_000)}
    first, second = (handle.get() for handle in transship.start_copy_to_all(tree, ["cpu", torch.device("cpu")], copy=True))
    assert first["b"] is second["b"] is tree["b"]
    for result in (first, second):
        assert_same(result["a"][0], tree["a"][0])
        assert_same(result["large"], tree["large"])
        assert isinstance(result["a"][1], torch.Tensor)
    first["a"][0].fill_(-1)
    first["large"].fill_(-1)
    assert_same(second["a"][0], tree["a"][0])
    assert_same(second["large"], tree["large"])


def test_what_is_there_already_goes_through():
    tensor = torch.ones(3)
    assert all(handle.get()[0] is tensor for handle in transship.start_copy_to_all([tensor], ["cpu", "cpu"]))
    assert transship.start_copy_to_all([tensor], []) == []


@pytest.mark.parametrize("memory", ["torch", "transship"])
@pytest.mark.parametrize("seed", seeds(10))
def test_random_structures(memory, seed):
    rng = random.Random(seed)
    tree = [random_tree(rng) for _ in range(4)]
    options = {"alignment": rng.choice([1, 16, 24]), "max_chunk_bytes": rng.choice([100, 1 << 20]), "pinned": rng.random() < 0.5, "background": rng.random() < 0.5}
    handles = transship.start_copy_to_all(tree, ["cpu"] * rng.randrange(1, 4), copy=True, memory=memory, **options)
    rng.shuffle(handles)
    for handle in handles:
        assert_copied(handle.get(), tree)


def test_the_same_tensor_twice_becomes_two():
    tensor = torch.ones(3)
    first, second = transship.start_copy_to_all([tensor, tensor], ["cpu"], copy=True)[0].get()
    first.zero_()
    assert second.tolist() == [1, 1, 1]


def test_results_small_share_storages_and_cast_as_asked():
    tensors = [torch.full((n,), float(n)) for n in range(1, 20)]
    for handle in transship.start_copy_to_all(tensors, ["cpu", "cpu"], copy=True, cast=torch.bfloat16):
        results = handle.get()
        assert len({one.untyped_storage().data_ptr() for one in results}) == 1
        for result, tensor in zip(results, tensors):
            assert_same(result, tensor.bfloat16())


def test_handles_are_independent():
    tensors = [torch.ones(1 << 20), torch.ones(3)]
    first, second, third = transship.start_copy_to_all(tensors, ["cpu"] * 3, copy=True)
    del first
    second.cancel()
    assert third.get()[0].sum() == 1 << 20


def test_inputs_are_let_go_of():
    tensor = torch.ones(100_000)
    gone = weakref.ref(tensor)
    results = [handle.get() for handle in transship.start_copy_to_all([tensor], ["cpu", "cpu"], copy=True)]
    del tensor
    deadline = time.monotonic() + 10
    while gone() is not None and time.monotonic() < deadline:
        gc.collect()
        transship.start_copy([], "cpu").get()
    assert gone() is None and len(results) == 2


def test_errors_are_those_of_one_copy():
    with pytest.raises(ValueError):
        transship.start_copy_to_all([np.ones(1)], ["cpu", "cuda:0"], like="numpy")
    with pytest.raises(transship.Error):
        transship.start_copy_to_all([np.ones(1)], ["cpu", "cuda:77"], memory="transship", like="dlpack")
    with pytest.raises(TypeError):
        transship.start_copy_to_all([np.array([object()])], ["cpu"], copy=True)


class Changing:
    """A container that holds another tensor each time that it is looked at."""

    def __init__(self, *tensors):
        self.tensors = list(tensors)

    def look(self):
        return [self.tensors.pop(0)], None


transship.register_container(Changing, Changing.look, lambda context, items: items)


# Deliberate bug: `start_copies` in `calls.rs` compares the number of leaves alone.
@pytest.mark.parametrize(
    "other",
    [torch.ones(1 << 20, dtype=torch.uint8), torch.ones(1 << 20), torch.ones(1 << 19, dtype=torch.float64), torch.ones(1 << 20, 1, dtype=torch.float64), torch.ones(1 << 20).to_sparse()],
    ids=["smaller elements", "another type", "fewer", "another shape", "none that is read"],
)
@pytest.mark.parametrize("cast", [{"float64": "float32"}, None])
def test_a_structure_that_changes_between_two_looks_is_an_error(other, cast):
    """What is read for one target is cast as was chosen for another one."""
    first = torch.ones(1 << 20, dtype=torch.float64)
    for tensors in ([first, other], [other, first]):
        # What lies in front is read for both, and grouped by what is to be cast.
        tree = [torch.zeros(4, dtype=torch.int64), Changing(*tensors)]
        with pytest.raises(RuntimeError, match="changed while it was read"):
            transship.start_copy_to_all(tree, ["cpu", "cpu"], cast=cast, copy=True)


def test_a_container_that_makes_the_same_anew_each_time_is_copied():
    same = [torch.full((5,), float(number), dtype=torch.float64) for number in range(2)]
    for handle in transship.start_copy_to_all([Changing(*same)], ["cpu", "cpu"], cast={"float64": "float32"}, copy=True):
        assert handle.get()[0][0].dtype == torch.float32
