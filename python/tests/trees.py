"""Random structures, copies of them on the host that go the whole way, and comparisons."""

import random

import torch

from transship import _transship, multi_tensor_copier

DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.complex128, torch.bool,
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64,
    torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu, torch.complex32,
]


def copy_all(data, device="cpu", **options):
    """Copy tensors that are on the device already as well: the way of copies to a GPU, without one."""
    defaults = {
        "use_pinned_staging": True,
        "pack_cpu_tensors": True,
        "min_packed_alignment_bytes": 16,
        "max_packed_chunk_bytes": 32 << 20,
        "use_background_thread": True,
    }
    handle = _transship.start_copy_as_forebear(data, device, **{**defaults, **options}, always=True)
    return multi_tensor_copier.AsyncCopyHandle(handle)


def bytes_of(tensor):
    """The elements of a tensor in order, as bytes; what conj and neg change is done."""
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
    in_order = torch.empty(tensor.numel(), dtype=tensor.dtype)
    in_order.view(tensor.shape).copy_(tensor)
    return bytes(in_order.view(torch.uint8).numpy())


def assert_same(copied, original):
    assert isinstance(copied, torch.Tensor)
    assert (copied.shape, copied.dtype) == (original.shape, original.dtype)
    assert bytes_of(copied) == bytes_of(original)


def random_tensor(rng, device="cpu", largest=3000):
    dtype = rng.choice(DTYPES)
    rank = rng.choice([0, 1, 1, 1, 2, 2, 3, 4])
    shape = [rng.choice([0, 1, 2, 3, 5, 8, rng.randrange(1, 20)]) for _ in range(rank)]
    if rng.random() < 0.05:
        rank, shape = 1, [rng.randrange(largest * 100)]
    size = torch.empty((), dtype=dtype).element_size()
    count = 1
    for length in shape:
        count *= length
    data = torch.randint(0, 2 if dtype == torch.bool else 256, (count * size,), dtype=torch.uint8)
    tensor = data.view(dtype).reshape(shape).to(device)
    kind = rng.random()
    if kind < 0.15 and rank >= 2:
        tensor = tensor.transpose(0, rank - 1)
    elif kind < 0.3 and rank >= 1:
        tensor = tensor[:: rng.choice([2, 3])]
    elif kind < 0.35 and rank >= 2 and shape[-1] > 0:
        tensor = tensor[..., :1].expand(*shape[:-1], 4)
    elif kind < 0.4 and dtype in (torch.complex64, torch.complex128):
        tensor = tensor.conj()
    elif kind < 0.45 and dtype == torch.complex64:
        tensor = tensor.conj().imag
    elif kind < 0.5 and dtype in (torch.float32, torch.float64, torch.int64):
        tensor = torch._neg_view(tensor)
    return tensor


def random_tree(rng, depth=4, device="cpu"):
    kind = rng.random()
    if depth == 0 or kind < 0.4:
        return random_tensor(rng, device)
    if kind < 0.5:
        return rng.choice([None, "text", 3, 2.5, object()])
    items = [random_tree(rng, depth - 1, device) for _ in range(rng.randrange(6))]
    if kind < 0.7:
        return items
    if kind < 0.85:
        return tuple(items)
    return {rng.choice([str, int])(index): item for index, item in enumerate(items)}


def assert_copied(copied, original, leaf=assert_same):
    """The same structure, with copies of its tensors, and everything else as it was."""
    if isinstance(original, torch.Tensor):
        leaf(copied, original)
    elif isinstance(original, (list, tuple)):
        assert type(copied) is type(original) and len(copied) == len(original)
        for one, other in zip(copied, original):
            assert_copied(one, other, leaf)
    elif isinstance(original, dict):
        assert type(copied) is dict and list(copied) == list(original)
        for key in original:
            assert_copied(copied[key], original[key], leaf)
    else:
        assert copied is original


def seeds(count):
    """The seeds of a test of random structures; its name has the one that fails."""
    return [random.Random(count * 1000 + index).randrange(1 << 32) for index in range(count)]


