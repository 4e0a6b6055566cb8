"""Large leaves, which share no chunk: PyTorch makes a tensor for each, and they are copied in parts."""

import sys
import time

import pytest
import torch

import transship

MIB = 1 << 20
# More than the first part, and more than the second one.
MANY = 150


def copied(tree, **options):
    return transship.start_copy(tree, "cpu", copy=True, **options).get()


def each_different(count):
    """Leaves of 1 MiB of several types and layouts."""
    shapes = [(MIB // 4, torch.float32), (MIB // 8, torch.int64), (MIB, torch.bool), (MIB // 2, torch.bfloat16), (MIB // 8, torch.complex64)]
    leaves = []
    for number in range(count):
        elements, dtype = shapes[number % len(shapes)]
        whole = torch.arange(elements, dtype=torch.int32).add_(number).to(dtype).reshape(256, -1)
        leaves.append([whole, whole.t(), whole[:, ::2]][number % 3])
    return leaves


# Deliberate bug: `Unwrapped::like` gives the strides of the shape, and `is_sound` says nothing.
def test_leaves_in_several_parts_are_copied_each_by_its_layout():
    leaves = each_different(MANY)
    result = copied({"small": [torch.ones(3), torch.ones(2)], "large": leaves})
    assert all(torch.equal(small, torch.ones(len(small))) for small in result["small"])
    for leaf, copy in zip(leaves, result["large"], strict=True):
        assert (copy.dtype, copy.shape) == (leaf.dtype, leaf.shape)
        assert copy.stride() == leaf.clone().stride()
        assert torch.equal(copy, leaf)
        assert copy.untyped_storage().nbytes() == copy.nbytes


def test_one_leaf_in_two_parts_is_copied_in_both():
    leaf = torch.arange(MIB, dtype=torch.int32)
    result = copied([leaf] * 60)
    assert all(torch.equal(copy, leaf) for copy in result)
    assert len({copy.data_ptr() for copy in result}) == 60


def test_what_is_not_packed_is_made_as_what_is_large():
    leaves = [torch.arange(number % 7, dtype=torch.float16) for number in range(300)] + [torch.tensor(5)]
    result = copied(leaves, packing=False)
    assert all(torch.equal(copy, leaf) and copy.dtype == leaf.dtype for copy, leaf in zip(result, leaves, strict=True))


def test_without_memory_for_a_later_part_nothing_is_held_for_long():
    leaves = [torch.full((MIB // 4,), number, dtype=torch.int32) for number in range(60)]
    # A view of one element, whose copy has more bytes than there are.
    leaves.append(torch.ones(1).expand(1 << 46))
    count = lambda: [sys.getrefcount(leaf) for leaf in leaves]  # noqa: E731
    before = count()
    with pytest.raises(RuntimeError, match="memory"):
        copied(leaves)
    deadline = time.monotonic() + 30
    while count() != before and time.monotonic() < deadline:
        transship.start_copy([], "cpu").get()  # lets go of what threads of the library have queued
    assert count() == before
    assert torch.equal(copied(leaves[:60])[59], leaves[59])


# Deliberate bug: `progress` of `Copies` counts nothing for a copy that is done.
def test_progress_counts_parts_that_are_done():
    leaves = [torch.full((MIB // 4,), number, dtype=torch.int32) for number in range(MANY)]
    handle, seen = transship.start_copy(leaves, "cpu", copy=True), [(0, MANY * MIB)]
    while True:
        try:
            handle.get(timeout=0.0005)
            break
        except TimeoutError:
            seen.append(handle.progress())
    seen = [progress for progress in seen if progress is not None]
    assert len(seen) > 1 and {total for _, total in seen} == {MANY * MIB}
    assert seen == sorted(seen)
