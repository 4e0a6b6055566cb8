"""Every element type that PyTorch has comes back as what it was, or is an error."""

import numpy as np
import pytest
import torch

import transship
from transship.multi_tensor_copier import start_copy

# Of `ElementType` in `dtype.rs`.
COPIED_HERE = {
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex32, torch.complex64, torch.complex128, torch.bool),
    *(torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64),
    *(torch.float8_e5m2, torch.float8_e4m3fn, torch.float8_e5m2fnuz, torch.float8_e4m3fnuz, torch.float8_e8m0fnu),
}
DTYPES = sorted({dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}, key=str)


def tensor_of(dtype):
    """``None`` for types of which there are no tensors without more."""
    try:
        return (torch.arange(48, dtype=torch.uint8) % 2).view(dtype)
    except (RuntimeError, NotImplementedError, TypeError):
        return None


def bytes_of(tensor):
    # As one dimension: types of PyTorch's own can be looked at, and little else.
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())[tensor.storage_offset() * tensor.element_size() :][: tensor.numel() * tensor.element_size()].tolist()


# Deliberate bugs: two numbers of `scalar_type` in `dtype.rs` are exchanged; `may_be_narrower` there says no.
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_types_are_kept(dtype):
    tensor = tensor_of(dtype)
    if tensor is None:
        assert dtype not in COPIED_HERE
        return
    trees = [[tensor, tensor], [tensor[::2]], [tensor.reshape(1, 1, 1, 1, -1)]]
    for tree in trees:
        for copy in (lambda: transship.start_copy(tree, "cpu", copy=True).get(), lambda: transship.start_copy(tree, "cpu", copy=True, packing=False).get()):
            try:
                result = copy()
            except (NotImplementedError, RuntimeError):
                # PyTorch copies it no more than this package.
                assert dtype not in COPIED_HERE
                with pytest.raises((NotImplementedError, RuntimeError)):
                    tree[0].to("cpu", copy=True)
                continue
            for copied, leaf in zip(result, tree, strict=True):
                assert copied.dtype == dtype and copied.shape == leaf.shape
                assert copied.data_ptr() != leaf.data_ptr()
                assert leaf.stride(-1) != 1 or bytes_of(copied) == bytes_of(leaf)
    assert start_copy([tensor], "cpu").get()[0].dtype == dtype


def test_bytes_are_not_filled_with_what_has_fewer_bits():
    tensor = torch.zeros(4, dtype=torch.uint8).view(torch.int4)
    with pytest.raises((TypeError, ValueError, NotImplementedError, RuntimeError)):
        transship.start_copy_into([tensor], [torch.zeros(4, dtype=torch.int8)]).get()
    # They are no integers that it knows, and stay as they are.
    assert transship.start_copy([tensor], "cpu", cast="int32").get()[0] is tensor


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.bool_, np.float16, np.complex128], ids=str)
def test_so_are_those_of_numpy(dtype):
    array = np.arange(12).reshape(3, 4).astype(dtype)
    result = transship.start_copy([array], "cpu", copy=True, like="numpy").get()[0]
    assert result.dtype == array.dtype and (result == array).all()
