"""``transship.multi_tensor_copier``, on the host: what it takes, what it gives, and its errors."""

import collections
import dataclasses
import gc
import random
import sys
import time
import weakref

import numpy as np
import pytest
import torch

import transship
from transship import multi_tensor_copier
from trees import assert_copied, assert_same, copy_all, random_tree, seeds

start_copy = multi_tensor_copier.start_copy


def storages(tensors):
    return {tensor.untyped_storage().data_ptr() for tensor in tensors}


def test_containers_and_what_goes_through():
    marker = object()
    data = {"list": [torch.ones(2), None, marker], "tuple": (1, "text", torch.zeros(3)), 3: {"empty": {}}, "none": []}
    result = copy_all(data).get()
    assert_copied(result, data)
    assert result["list"][2] is marker


def test_subclasses_of_containers_come_back_plain():
    Pair = collections.namedtuple("Pair", "one two")
    ordered = collections.OrderedDict([("b", torch.ones(1)), ("a", 2)])
    ordered.move_to_end("b")
    result = copy_all([Pair(torch.ones(1), 2), ordered, collections.defaultdict(list, k=1), torch.Size([2, 3])]).get()
    assert [type(item) for item in result] == [tuple, dict, dict, tuple]
    assert list(result[1]) == ["a", "b"]
    assert result[3] == (2, 3)


def test_a_root_of_any_kind():
    tensor, marker = torch.arange(5), object()
    assert_same(copy_all(tensor).get(), tensor)
    assert start_copy(marker, "cpu").get() is marker
    assert start_copy((), "cpu").get() == ()


def test_dataclasses_and_sets_go_through():
    @dataclasses.dataclass
    class Sample:
        tensor: torch.Tensor

    sample, held = Sample(torch.ones(2)), {1, 2}
    result = start_copy([sample, held], "cpu").get()
    assert result[0] is sample and result[1] is held


def test_what_is_there_already_is_kept():
    tensor = torch.ones(4)
    result = start_copy([tensor, tensor], torch.device("cpu")).get()
    assert result[0] is tensor and result[1] is tensor


def test_arrays_of_numpy_on_the_host_are_not_copied():
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    result = start_copy({"array": array}, "cpu").get()["array"]
    assert isinstance(result, torch.Tensor)
    array[0, 0] = 7
    assert result[0, 0] == 7


def test_arrays_of_numpy_that_pytorch_refuses_at_first():
    assert start_copy(np.arange(4)[::-1], "cpu").get().tolist() == [3, 2, 1, 0]
    assert_same(copy_all(np.arange(12).reshape(3, 4)[:, ::2]).get(), torch.arange(12).reshape(3, 4)[:, ::2])


@pytest.mark.parametrize("array", [np.zeros(2, ">f4"), np.array([object()]), np.array(["text"]), np.zeros(2, "M8[s]")])
def test_arrays_that_pytorch_has_no_type_for(array):
    with pytest.raises(TypeError):
        start_copy([torch.ones(1), array], "cpu")


def test_scalars_of_numpy_go_through():
    scalar = np.float32(2)
    assert start_copy([scalar], "cpu").get()[0] is scalar
    assert start_copy(np.array(2.0), "cpu").get().shape == ()


@pytest.mark.parametrize("alignment", [-5, 0, 1, 3, 6, 7, 16, 24, 100, 256, 4096, 2**62])
def test_any_alignment(alignment):
    tensors = [torch.arange(n).to(dtype) for n in (1, 3, 5, 9) for dtype in (torch.uint8, torch.float32, torch.complex128)]
    results = copy_all(tensors, min_packed_alignment_bytes=alignment).get()
    for result, tensor in zip(results, tensors):
        assert_same(result, tensor)
        size = tensor.element_size()
        expected = -(-max(alignment, 1, size) // size) * size
        assert result.storage_offset() * size % expected == 0


# Deliberate bug: `_clamped` in `multi_tensor_copier.py` returns the number as it is.
@pytest.mark.parametrize("number", [-(2**70), 2**63, 2**70])
def test_numbers_of_any_size(number):
    handle = start_copy([torch.ones(2)], "cpu", min_packed_alignment_bytes=number, max_packed_chunk_bytes=number)
    assert handle.get()[0].tolist() == [1, 1]


# Deliberate bug: `start_copy` of `multi_tensor_copier.py` gives its options on as they are.
def test_options_are_true_or_false_as_python_has_it():
    options = dict.fromkeys(["use_pinned_staging", "pack_cpu_tensors", "use_background_thread"], 0)
    assert start_copy([torch.ones(2)], "cpu", **options).get()[0].tolist() == [1, 1]


# Deliberate bug: `LARGEST_PACKED` in `plan.rs` is 512 KiB.
def test_what_is_packed_shares_a_storage():
    small = [torch.ones(n) for n in (1, 2, 65536)]
    large = torch.ones(65537)
    strided = torch.ones(4, 4)[:, ::2]
    results = copy_all([*small, large, strided]).get()
    assert len(storages(results[:3])) == 1
    assert len(storages(results)) == 3
    assert results[3].untyped_storage().nbytes() == large.nbytes
    assert results[4].is_contiguous()


def test_one_small_tensor_is_not_packed():
    results = copy_all([torch.ones(3), torch.ones(1 << 20)]).get()
    assert results[0].untyped_storage().nbytes() == 12


def test_packing_can_be_switched_off():
    assert len(storages(copy_all([torch.ones(3)] * 5, pack_cpu_tensors=False).get())) == 5


# Deliberate bug: `add` in `gather.rs` leaves the offset out.
@pytest.mark.parametrize("count", [2, 7, 8, 9, 500])
@pytest.mark.parametrize("largest", [3, 100, 2000])
def test_many_small_tensors(count, largest):
    rng = random.Random(count)
    tensors = [torch.randn(rng.randrange(1, largest + 1)).to(rng.choice([torch.float64, torch.float32, torch.int8])) for _ in range(count)]
    results = copy_all(tensors, min_packed_alignment_bytes=rng.choice([1, 16, 24])).get()
    for result, tensor in zip(results, tensors):
        assert_same(result, tensor)


# Deliberate bug: `place` in `plan.rs` compares with `packing.max_chunk * 2`.
@pytest.mark.parametrize(("largest", "chunks"), [(-1, 6), (0, 6), (100, 6), (256, 3), (1 << 20, 1)])
def test_chunks_have_a_largest_size(largest, chunks):
    tensors = [torch.full((32,), float(n)) for n in range(6)]
    results = copy_all(tensors, max_packed_chunk_bytes=largest).get()
    assert len(storages(results)) == chunks
    for result, tensor in zip(results, tensors):
        assert_same(result, tensor)


def test_orders_of_dimensions_are_kept_where_nothing_is_left_out():
    tensor = torch.arange(24).reshape(2, 3, 4).permute(2, 0, 1)
    result = copy_all(tensor).get()
    assert result.stride() == tensor.stride()
    assert_same(result, tensor)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(3, dtype=torch.complex64).conj(),
        torch.randn(3, dtype=torch.complex64).conj().imag,
        torch.randn(1, dtype=torch.complex64).conj().imag,
        # Negated, and without gaps.
        torch.randn(6, dtype=torch.complex64).conj().imag.as_strided((3,), (1,)),
        torch._neg_view(torch.randn(2, 3)),
        torch._neg_view(torch.arange(4)),
        torch._neg_view(torch.nn.Parameter(torch.randn(4))),
        torch._efficientzerotensor((3,)),
        torch.randn(4, requires_grad=True),
        torch.nn.Parameter(torch.randn(4)),
        torch.randn(4, 4)[1::2, 1:].t(),
        torch.frombuffer(bytearray(13), dtype=torch.uint8)[1:],
        torch.frombuffer(bytearray(range(13)), dtype=torch.uint8)[1:].view(torch.uint8),
        torch.randn(2, 1).expand(2, 5),
        torch.ones(1, 1, 1, 1, 1, 1, 1, 1, 2, 2).transpose(8, 9)[..., ::2],
    ],
)
# Deliberate bugs: `are_set` in `torch/lazy.rs` says no, `are_plain` says yes; `is_lazy` in `torch/read.rs` says no.
def test_unusual_tensors_have_the_right_elements(tensor):
    result = copy_all([tensor, tensor]).get()
    assert_same(result[0], tensor)
    assert_same(result[1], tensor)


def test_tensors_without_plain_memory_are_left_to_pytorch():
    sparse = torch.eye(3).to_sparse()
    quantised = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)
    result = copy_all([sparse, quantised, torch.ones(2)]).get()
    assert result[0].is_sparse and torch.equal(result[0].to_dense(), torch.eye(3))
    assert result[1].is_quantized and torch.equal(result[1].dequantize(), quantised.dequantize())


def test_meta_tensors_are_an_error_of_pytorch():
    with pytest.raises((NotImplementedError, RuntimeError)):
        copy_all([torch.empty(3, device="meta")])


def test_subclasses_that_intercept_are_left_to_pytorch():
    class Wrapped(torch.Tensor):
        @classmethod
        def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
            raise AssertionError(f"{function} is called")

    tensor = torch.Tensor._make_subclass(Wrapped, torch.ones(3))
    with pytest.raises(AssertionError, match="_to_copy.* is called"):
        copy_all([tensor])
    # Its `to` gives the tensor itself, which is on the host already.
    assert start_copy([tensor], "cpu").get()[0] is tensor


def test_get_builds_anew_with_the_same_tensors():
    handle = copy_all({"a": [torch.ones(2), torch.ones(3)]})
    first, second = handle.get(), handle.get()
    assert first is not second and first["a"] is not second["a"]
    assert first["a"][0] is second["a"][0]


def test_ready_becomes_true():
    handle = copy_all([torch.ones(1 << 20)])
    handle.get()
    assert handle.ready() is True


@pytest.mark.parametrize("device", ["nonsense", "cuda:x", "cpu:y"])
def test_devices_that_are_none(device):
    with pytest.raises(RuntimeError):
        start_copy([torch.ones(1)], device)


def test_the_text_of_an_invalid_device_is_that_of_pytorch():
    with pytest.raises(RuntimeError, match="Invalid device string: 'cuda:x'"):
        start_copy([], "cuda:x")


def test_keywords_only_and_their_defaults():
    with pytest.raises(TypeError):
        start_copy([], "cpu", True)
    start_copy([], "cpu", use_pinned_staging=False, pack_cpu_tensors=False, min_packed_alignment_bytes=1)
    start_copy([], "cpu", max_packed_chunk_bytes=1, use_background_thread=False, max_h2d_transfer_chunk_bytes=4)
    assert [field.name for field in dataclasses.fields(multi_tensor_copier.AsyncCopyHandle)] == ["_h"]


@pytest.mark.parametrize("background", [True, False])
@pytest.mark.parametrize("pinned", [True, False])
def test_ways_to_copy(background, pinned):
    tensors = [torch.arange(n) for n in (1, 1000, 300_000)]
    results = copy_all(tensors, use_background_thread=background, use_pinned_staging=pinned).get()
    for result, tensor in zip(results, tensors):
        assert_same(result, tensor)


def test_a_structure_that_holds_itself():
    data = []
    data.append(data)
    with pytest.raises(RecursionError):
        start_copy(data, "cpu")


def test_what_a_failed_call_held_is_let_go_of():
    tensor = torch.ones(3)
    gone = weakref.ref(tensor)
    with pytest.raises(TypeError):
        start_copy([tensor, np.array([object()])], "cpu")
    del tensor
    gc.collect()
    assert gone() is None


# Deliberate bug: `drain` in `released.rs` drops nothing.
def test_inputs_are_let_go_of_once_the_copy_is_done():
    tensors = [torch.ones(n) for n in (10, 400_000)]
    gone = [weakref.ref(tensor) for tensor in tensors]
    handle = copy_all(tensors)
    handle.get()
    del tensors
    gc.collect()
    # The handle holds results, and not what they were copied from.
    assert [one() for one in gone] == [None, None]


# Deliberate bug: `carry_on` in `progress.rs` keeps all tensors.
def test_results_belong_to_whoever_has_them():
    handle = copy_all([torch.ones(1 << 20), torch.ones(1 << 20)])
    result = handle.get()
    deadline = time.monotonic() + 10
    # The one of the list, that of the handle, and that of the call.
    while sys.getrefcount(result[0]) > 4 and time.monotonic() < deadline:
        handle.ready()
    count = sys.getrefcount(result[0])
    assert count <= 4
    gone = weakref.ref(result[0])
    del handle, result
    assert gone() is None


def test_references_do_not_grow():
    data = {"a": [torch.ones(2), torch.ones(3), "text"], "b": (np.ones(2), None)}
    key = next(iter(data))
    for _ in range(3):
        copy_all(data).get()
    before = sys.getrefcount(data["a"][0]), sys.getrefcount(data["a"]), sys.getrefcount(key), len(gc.get_objects())
    for _ in range(200):
        copy_all(data).get()
    gc.collect()
    after = sys.getrefcount(data["a"][0]), sys.getrefcount(data["a"]), sys.getrefcount(key), len(gc.get_objects())
    assert before[:3] == after[:3]
    assert after[3] - before[3] < 50


def test_install_as_accvlab():
    assert transship.install_as_accvlab() is multi_tensor_copier
    import accvlab.multi_tensor_copier as installed
    from accvlab.multi_tensor_copier import AsyncCopyHandle, __version__, start_copy as start

    assert installed is multi_tensor_copier and start is start_copy
    assert AsyncCopyHandle is multi_tensor_copier.AsyncCopyHandle and __version__


@pytest.mark.parametrize("seed", seeds(40))
def test_random_structures(seed):
    rng = random.Random(seed)
    data = [random_tree(rng) for _ in range(6)]
    options = {
        "pack_cpu_tensors": rng.random() < 0.8,
        "min_packed_alignment_bytes": rng.choice([-1, 1, 3, 16, 48, 512]),
        "max_packed_chunk_bytes": rng.choice([1, 100, 4096, 1 << 25]),
        "use_background_thread": rng.random() < 0.5,
    }
    handle = copy_all(data, **options)
    assert_copied(handle.get(), data)
    assert_copied(handle.get(), data)
