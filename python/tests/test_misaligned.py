"""Arrays whose address is no multiple of the size of their elements: parts of records, of files that are mapped."""

import sys

import numpy as np
import pytest
import torch

import transship
from transship import multi_tensor_copier


def misaligned(dtype, shape):
    values = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    raw = np.zeros(values.nbytes + 17, np.uint8)
    start = (1 - raw.ctypes.data) % 16
    array = raw[start : start + values.nbytes].view(dtype).reshape(shape)
    array[...] = values
    assert array.ctypes.data % array.itemsize and not array.flags.aligned
    return array


def views(dtype):
    flat, matrix, large = misaligned(dtype, (6,)), misaligned(dtype, (4, 6)), misaligned(dtype, (300, 1000))
    return [flat, matrix, flat[::-1], flat[3:4], matrix[:, ::2], matrix.T, matrix[1:1], large, large[:, ::3]]


TYPES = pytest.mark.parametrize("dtype", ["i2", "f4", "f8", "c8", "c16"])


def assert_same(results, arrays):
    assert len(results) == len(arrays)
    for result, array in zip(results, arrays):
        np.testing.assert_array_equal(np.asarray(result), array)


# Deliberate bugs: `read` in `dlpack.rs` does not look whether the leaf is aligned; `slot` in `forebear.rs` does not
# (PyTorch ends the process then); `copy_elements` in `misaligned.rs` begins a row without setting `at` to 0.
@TYPES
@pytest.mark.parametrize("options", [{"like": "numpy"}, {"memory": "torch"}, {"like": "numpy", "packing": False}])
def test_they_are_copied(dtype, options):
    arrays = views(dtype)
    assert_same(transship.start_copy(arrays, "cpu", copy=True, **options).get(), arrays)
    tensors = [torch.from_numpy(array) for array in arrays if min(array.strides) > 0]
    assert_same(transship.start_copy(tensors, "cpu", copy=True, **options).get(), tensors)


@TYPES
def test_they_are_copied_in_the_place_of_the_forebear(dtype):
    arrays = views(dtype)
    assert_same(multi_tensor_copier.start_copy(arrays, "cpu").get(), arrays)


def test_they_are_cast():
    arrays = views("f4")
    results = transship.start_copy(arrays, "cpu", copy=True, like="numpy", cast={"float32": "float64"}).get()
    assert_same(results, [array.astype("f8") for array in arrays])


@TYPES
def test_they_are_copied_into_others(dtype):
    arrays = [array for array in views(dtype) if array.size]
    into = [np.zeros(array.shape, dtype) for array in arrays]
    transship.start_copy_into(arrays, into).get()
    assert_same(into, arrays)


@pytest.mark.parametrize("make", [np.asarray, torch.from_numpy])
def test_others_are_not_copied_into_them(make):
    with pytest.raises(ValueError, match="no multiple of the size of its elements") as raised:
        transship.start_copy_into({"a": [np.zeros(6, "f4")]}, {"a": [make(misaligned("f4", (6,)))]})
    if sys.version_info >= (3, 11):
        assert raised.value.__notes__ == ["in the structure to copy into, at ['a'][0]"]
