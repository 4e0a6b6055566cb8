"""The whole contract on GPUs. All of it is skipped where PyTorch has none."""

import asyncio
import gc
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
import weakref

import numpy as np
import pytest
import torch

import transship
from transship.multi_tensor_copier import start_copy
from trees import DTYPES, assert_copied, assert_same, random_tree, seeds

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch has no GPU here")
two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are no two GPUs")

GPU = "cuda:0"


def on(device):
    """A leaf that is a copy of another one, on this device."""

    def check(copied, original):
        assert copied.device == torch.device(device)
        assert_same(copied, original)

    return check


def storages(tensors):
    return {tensor.untyped_storage().data_ptr() for tensor in tensors}


def spin(stream, cycles=400_000_000):
    """Keep a stream busy for some tenths of a second."""
    with torch.cuda.stream(stream):
        torch.cuda._sleep(cycles)


def test_up_and_down_again():
    data = {"list": [torch.randn(3, 4), None, torch.arange(5)], "tuple": (np.ones((2, 2), np.float32), "text"), "large": torch.randn(700, 700)}
    up = start_copy(data, GPU).get()
    assert [t.device for t in (up["list"][0], up["tuple"][0], up["large"])] == [torch.device(GPU)] * 3
    down = start_copy(up, "cpu").get()
    assert_same(down["list"][0], data["list"][0])
    assert_same(down["tuple"][0], torch.from_numpy(data["tuple"][0]))
    assert_same(down["large"], data["large"])
    assert up["list"][1] is None and up["tuple"][1] == "text"


def test_the_device_may_be_named_in_several_ways():
    for device in ("cuda", GPU, torch.device("cuda"), torch.device("cuda", 0)):
        assert start_copy(torch.ones(3), device).get().device == torch.device(GPU)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_type(dtype):
    size = torch.empty((), dtype=dtype).element_size()
    tensors = [torch.zeros(n * size, dtype=torch.uint8).random_(0, 2).view(dtype) for n in (1, 5, 300_000)]
    up = start_copy(tensors, GPU).get()
    for copied, tensor in zip(up, tensors):
        on(GPU)(copied, tensor)
    for copied, tensor in zip(start_copy(up, "cpu").get(), tensors):
        on("cpu")(copied, tensor)


def test_packed_leaves_share_one_storage_of_pytorch():
    small = [torch.full((n,), float(n)) for n in (1, 7, 65536)]
    large = torch.ones(65537)
    up = start_copy([*small, large], GPU).get()
    assert len(storages(up[:3])) == 1 and len(storages(up)) == 2
    assert up[3].untyped_storage().nbytes() == large.nbytes
    for tensor in up:
        tensor.record_stream(torch.cuda.current_stream())


@pytest.mark.parametrize("alignment", [-1, 0, 1, 6, 7, 24, 48, 256])
def test_any_alignment(alignment):
    tensors = [torch.arange(n).to(dtype) for n in (1, 3, 5) for dtype in (torch.uint8, torch.float32, torch.float64)]
    for copied, tensor in zip(start_copy(tensors, GPU, min_packed_alignment_bytes=alignment).get(), tensors):
        assert_same(copied, tensor)
        size = tensor.element_size()
        expected = -(-max(alignment, 1, size) // size) * size
        assert copied.storage_offset() * size % expected == 0


def test_chunks_have_a_largest_size():
    tensors = [torch.full((32,), float(n)) for n in range(6)]
    assert len(storages(start_copy(tensors, GPU, max_packed_chunk_bytes=256).get())) == 3
    assert len(storages(start_copy(tensors, GPU, max_packed_chunk_bytes=-1).get())) == 6
    assert len(storages(start_copy(tensors, GPU, pack_cpu_tensors=False).get())) == 6


def test_memory_is_that_of_pytorch():
    gc.collect()
    before = torch.cuda.memory_allocated()
    up = start_copy([torch.ones(1 << 20), torch.ones(1 << 20)], GPU).get()
    assert torch.cuda.memory_allocated() - before >= 8 << 20
    del up
    gc.collect()
    deadline = time.monotonic() + 10
    while torch.cuda.memory_allocated() > before and time.monotonic() < deadline:
        start_copy([], GPU).get()
    assert torch.cuda.memory_allocated() == before


def test_out_of_memory_is_that_of_pytorch():
    torch.cuda.set_per_process_memory_fraction((1 << 30) / torch.cuda.mem_get_info()[1])
    try:
        with pytest.raises(torch.OutOfMemoryError):
            start_copy([torch.empty(3 << 30, dtype=torch.uint8)], GPU)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def test_what_is_there_already_is_kept():
    here = torch.ones(4, device=GPU)
    result = start_copy([here, torch.ones(2), torch.ones(3)], GPU).get()
    assert result[0] is here


# Deliberate bug: `is_gathered_between` in `forebear.rs` leaves the change of the device out.
def test_leaves_that_lie_side_by_side():
    packed = start_copy([torch.arange(n, dtype=dtype) for n in (1, 3, 50) for dtype in (torch.uint8, torch.float32, torch.float64)], GPU).get()
    block = torch.arange(4096, dtype=torch.float32, device=GPU)
    parts = [block[a:b] for a, b in ((0, 5), (5, 9), (9, 9), (7, 20), (200, 203), (1000, 1400), (0, 5), (20, 21))]
    others = [torch.full((n,), float(n), device=GPU) for n in (1, 2, 3)]
    data = [*packed, *parts, *others, block[10:40:2], torch.ones(3)]
    for target in ["cpu", "cuda:1"][: torch.cuda.device_count()]:
        for options in ({}, {"max_packed_chunk_bytes": 100}, {"min_packed_alignment_bytes": 64}, {"pack_cpu_tensors": False}):
            copied = start_copy(data, target, **options).get()
            for one, original in zip(copied, data):
                on(target)(one, original)
    copied = start_copy(parts, "cpu").get()
    copied[0].fill_(-1)
    assert_same(copied[6], parts[6])
    assert_same(copied[3], parts[3])


def test_results_down_are_pinned():
    up = [torch.randn(5, device=GPU), torch.randn(1 << 20, device=GPU)]
    assert all(tensor.is_pinned() for tensor in start_copy(up, "cpu").get())
    assert not any(tensor.is_pinned() for tensor in start_copy(up, "cpu", use_pinned_staging=False).get())


@pytest.mark.parametrize("background", [True, False])
@pytest.mark.parametrize("pinned", [True, False])
def test_ways_to_copy(background, pinned):
    tensors = [torch.arange(n) for n in (1, 1000, 300_000, 3_000_000)]
    options = {"use_background_thread": background, "use_pinned_staging": pinned}
    up = start_copy(tensors, GPU, **options).get()
    for copied, tensor in zip(start_copy(up, "cpu", **options).get(), tensors):
        assert_same(copied, tensor)


def test_pinned_inputs():
    tensors = [torch.arange(n).pin_memory() for n in (3, 3_000_000)]
    for copied, tensor in zip(start_copy(tensors, GPU).get(), tensors):
        assert_same(copied, tensor)


# Deliberate bug: `streams` in `start.rs` gives no stream.
def test_a_copy_down_comes_behind_what_fills_its_source():
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        source = torch.zeros(1 << 20, device=GPU)
        torch.cuda._sleep(200_000_000)
        source.fill_(7)
        copied = start_copy([source, source[:5]], "cpu").get()
    assert bool((copied[0] == 7).all()) and bool((copied[1] == 7).all())


def test_a_copy_up_comes_behind_what_used_its_memory():
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(20):
            earlier = torch.ones(1 << 16, device=GPU)
            torch.cuda._sleep(5_000_000)
            earlier.fill_(3)
            del earlier
            copied = start_copy([torch.full((1 << 16,), 9.0)] * 2, GPU).get()
            assert bool((copied[0] == 9).all())
            del copied


def test_a_result_is_usable_on_the_current_stream():
    handle = start_copy([torch.full((1 << 20,), 2.0)], GPU)
    assert float(handle.get()[0].sum()) == 2.0 * (1 << 20)


def test_starting_does_not_wait_for_a_busy_stream():
    stream = torch.cuda.Stream()
    start_copy([torch.ones(3), torch.ones(4)], GPU).get()
    spin(stream)
    with torch.cuda.stream(stream):
        handle = start_copy([torch.ones(3), torch.ones(4)], GPU)
        assert not handle.ready()
        assert handle.get()[0].sum() == 3
    assert handle.ready()


def test_dropping_a_handle_in_flight():
    stream = torch.cuda.Stream()
    tensors = [torch.ones(n) for n in (5, 1 << 20)]
    gone = weakref.ref(tensors[0])
    spin(stream)
    with torch.cuda.stream(stream):
        handle = start_copy(tensors, GPU)
    del handle, tensors
    stream.synchronize()
    for _ in range(100):
        start_copy(torch.ones(1), GPU).get()
        gc.collect()
        if gone() is None:
            return
        torch.cuda._sleep(10_000_000)
        torch.cuda.synchronize()
    raise AssertionError("the inputs are still held")


def test_unusual_tensors_on_the_device():
    base = torch.arange(48, device=GPU, dtype=torch.float32).reshape(2, 4, 6)
    odd = [base.permute(2, 0, 1), base[:, ::2, 1:], base[:, :, :1].expand(2, 4, 3), torch.randn(4, dtype=torch.complex64, device=GPU).conj()]
    for copied, tensor in zip(start_copy(odd, "cpu").get(), odd):
        assert_same(copied, tensor)


def test_sparse_and_quantised_tensors():
    result = start_copy([torch.eye(3).to_sparse(), torch.ones(2), torch.ones(3)], GPU).get()
    assert result[0].is_sparse and result[0].device == torch.device(GPU)


def test_empty_tensors():
    result = start_copy([torch.empty(0, 3), torch.ones(2), torch.empty(4, 0)], GPU).get()
    assert [tuple(tensor.shape) for tensor in result] == [(0, 3), (2,), (4, 0)]
    assert all(tensor.device == torch.device(GPU) for tensor in result)


def test_invalid_devices():
    with pytest.raises(RuntimeError):
        start_copy([torch.ones(1)], "cuda:99").get()


def test_a_capture_is_an_error_and_no_deadlock():
    tensors = [torch.ones(2), torch.ones(3)]
    start_copy(tensors, GPU).get()
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError):
        with torch.cuda.graph(graph):
            start_copy(tensors, GPU).get()
    torch.cuda.synchronize()
    assert start_copy(tensors, GPU).get()[1].sum() == 3


@pytest.mark.parametrize("seed", seeds(30))
def test_random_structures(seed):
    rng = random.Random(seed)
    data = [random_tree(rng, device=rng.choice(["cpu", "cpu", GPU])) for _ in range(6)]
    up = start_copy(data, GPU, min_packed_alignment_bytes=rng.choice([1, 16, 24]), max_packed_chunk_bytes=rng.choice([100, 1 << 20])).get()
    assert_copied(up, data, on(GPU))
    assert_copied(start_copy(up, "cpu").get(), data, on("cpu"))


def test_threads():
    failures = []

    def work(seed):
        try:
            rng = random.Random(seed)
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                for _ in range(30):
                    data = [random_tree(rng, depth=3) for _ in range(4)]
                    assert_copied(start_copy(start_copy(data, GPU).get(), "cpu").get(), data, on("cpu"))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_the_interpreter_ends_with_copies_in_flight():
    program = textwrap.dedent("""
        import torch
        from transship.multi_tensor_copier import start_copy
        stream = torch.cuda.Stream()
        start_copy([torch.ones(3), torch.ones(4)], "cuda:0").get()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(1_000_000_000)
            kept = [start_copy([torch.ones(n), torch.ones(1 << 22)], "cuda:0") for n in range(1, 20)]
        dropped = start_copy([torch.ones(5)], "cuda:0")
        del dropped
    """)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("memory", ["torch", "transship"])
def test_the_front_door(memory):
    data = {"a": [torch.arange(5), torch.randn(300_000)], "b": (np.ones(3, np.float32), "text"), "odd": torch.randn(4, 6)[:, ::2]}
    up = transship.start_copy(data, GPU, memory=memory).get()
    assert_copied(up, {**data, "b": (torch.ones(3), "text")}, on(GPU))
    down = transship.start_copy(up, "cpu", memory=memory).get()
    assert_copied(down, {**data, "b": (torch.ones(3), "text")}, on("cpu"))


# Deliberate bug: `record` in `tensor.rs` does nothing.
def test_memory_of_transship_is_not_used_again_before_its_stream_has_come_by():
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for round_ in range(20):
            up = transship.start_copy([torch.full((1 << 16,), float(round_))] * 2, GPU, memory="transship").get()
            torch.cuda._sleep(5_000_000)
            doubled = up[0] * 2
            del up
            transship.start_copy([torch.full((1 << 16,), -1.0)] * 2, GPU, memory="transship").get()
            assert bool((doubled == 2 * round_).all())


# Deliberate bug: `wait_on` in `handle.rs` lets no stream wait.
def test_a_stream_waits_and_not_the_host():
    copies, compute = torch.cuda.Stream(), torch.cuda.Stream()
    tensors = [torch.full((1 << 18,), 3.0), torch.full((5,), 4.0)]
    spin(copies)
    with torch.cuda.stream(copies):
        handle = transship.start_copy(tensors, GPU)
    result = handle.wait_on(compute)
    with torch.cuda.stream(compute):
        sums = result[0].sum(), result[1].sum()
    assert not copies.query()
    del result, handle
    compute.synchronize()
    assert [float(one) for one in sums] == [3.0 * (1 << 18), 20.0]


def test_awaiting():
    async def main():
        stream = torch.cuda.Stream()
        spin(stream)
        with torch.cuda.stream(stream):
            handles = [transship.start_copy([torch.full((n,), 2.0)] * 2, GPU) for n in (1, 1000, 1 << 20)]
        return await asyncio.wait_for(asyncio.gather(*handles), 60)

    assert [int(result[0].sum()) for result in asyncio.run(main())] == [2, 2000, 2 << 20]


def test_a_timeout_and_then_the_result():
    stream = torch.cuda.Stream()
    spin(stream)
    with torch.cuda.stream(stream):
        handle = transship.start_copy([torch.ones(3), torch.ones(4)], GPU)
        with pytest.raises(TimeoutError):
            handle.get(timeout=0.01)
        assert handle.get(timeout=60)[1].sum() == 4


def test_an_interrupt_while_waiting():
    stream = torch.cuda.Stream()
    spin(stream, 4_000_000_000)
    with torch.cuda.stream(stream):
        handle = transship.start_copy([torch.ones(3), torch.ones(4)], GPU)
        begin = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            threading.Timer(0.1, lambda: signal.raise_signal(signal.SIGINT)).start()
            handle.get()
        assert time.monotonic() - begin < 1
        assert handle.get()[1].sum() == 4


def test_prefetching():
    def batches():
        for index in range(30):
            yield {"index": index, "tensors": [torch.full((n,), float(index)) for n in (3, 1000, 1 << 18)]}

    prefetched = transship.prefetch(batches(), GPU)
    kept = []
    for index, batch in enumerate(prefetched):
        assert batch["index"] == index
        torch.cuda._sleep(2_000_000)
        kept.append(sum(tensor.sum() for tensor in batch["tensors"]))
        del batch
    assert [float(one) for one in kept] == [float(index * (3 + 1000 + (1 << 18))) for index in range(30)]
    assert prefetched.stats()["batches"] == 30


def test_tensors_of_other_libraries_on_the_device():
    class Foreign:
        def __init__(self, tensor):
            self.tensor = tensor

        def __dlpack__(self, **options):
            return self.tensor.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.tensor.__dlpack_device__()

    down = transship.start_copy([Foreign(torch.arange(5, device=GPU)), Foreign(torch.ones(300_000, device=GPU))], "cpu").get()
    assert down[0].tolist() == [0, 1, 2, 3, 4] and float(down[1].sum()) == 300_000


@two_gpus
def test_between_gpus():
    data = [torch.arange(n, dtype=torch.float32, device=GPU) for n in (1, 5, 1000, 300_000)] + [torch.ones(3)]
    copied = start_copy(data, "cuda:1").get()
    assert_copied(copied, data, on("cuda:1"))


@two_gpus
def test_between_gpus_behind_what_fills_the_source():
    stream = torch.cuda.Stream(device=GPU)
    with torch.cuda.stream(stream):
        source = torch.zeros(1 << 20, device=GPU)
        torch.cuda._sleep(200_000_000)
        source.fill_(5)
        copied = start_copy([source, source[:3]], "cuda:1").get()
    assert bool((copied[0] == 5).all()) and bool((copied[1] == 5).all())


@two_gpus
def test_from_two_gpus_to_the_host():
    data = [torch.full((n,), 2.0, device=device) for device in (GPU, "cuda:1") for n in (3, 4, 100_000)]
    assert_copied(start_copy(data, "cpu").get(), data, on("cpu"))


@two_gpus
def test_the_other_gpu_while_one_is_current():
    with torch.cuda.device(0):
        assert start_copy([torch.ones(2), torch.ones(3)], "cuda:1").get()[0].device == torch.device("cuda:1")
    with torch.cuda.device(1):
        assert start_copy([torch.ones(2), torch.ones(3)], "cuda").get()[0].device == torch.device("cuda:1")


@pytest.mark.parametrize("seed", seeds(10))
def test_into_memory_that_is_held(seed):
    rng = random.Random(seed)
    tensors = [torch.randn(tuple(rng.randrange(1, 20) for _ in range(rng.randrange(3)))) for _ in range(60)] + [torch.randn(1 << 20)]
    held = transship.start_copy([torch.zeros_like(tensor) for tensor in tensors], GPU).get()
    addresses = [tensor.data_ptr() for tensor in held]
    result = transship.start_copy_into(tensors, held).get()
    assert all(one is other for one, other in zip(result, held)) and addresses == [tensor.data_ptr() for tensor in held]
    assert_copied(held, tensors, on(GPU))
    down = [torch.zeros_like(tensor) for tensor in tensors]
    transship.start_copy_into(held, down).get()
    assert_copied(down, tensors, on("cpu"))
    matrix = torch.zeros(len(tensors[0].flatten()), 4, device=GPU)
    # Columns of one matrix lie within each other: those of sources on two devices are two calls.
    transship.start_copy_into([tensors[0].flatten()], [matrix[:, 1]]).get()
    transship.start_copy_into([held[0].flatten()], [matrix[:, 3]]).get()
    assert_same(matrix[:, 1], tensors[0].flatten())
    assert_same(matrix[:, 3], tensors[0].flatten())
    assert not matrix[:, 0].any() and not matrix[:, 2].any()


# Deliberate bug: `streams` in `into.rs` are asked for without PyTorch.
def test_filling_comes_behind_what_the_current_stream_does_with_it():
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        held = torch.zeros(1 << 20, device=GPU)
        torch.cuda._sleep(200_000_000)
        doubled = held * 2
        held.fill_(9)
        transship.start_copy_into([torch.full((1 << 20,), 3.0)], [held]).get()
        assert float(doubled.sum()) == 0 and bool((held == 3).all())


def test_a_parameter_is_filled_and_autograd_notices():
    layer = torch.nn.Linear(8, 8, device=GPU)
    saved = (layer.weight * torch.ones(8, 8, device=GPU, requires_grad=True)).sum()
    with torch.no_grad():
        transship.start_copy_into(torch.ones(8, 8), layer.weight).get()
    assert bool((layer.weight == 1).all())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        saved.backward()


CASTS = [("float32", "bfloat16"), ("float32", "float64"), ("float64", "float16"), ("bfloat16", "float32"), ("uint8", "float16"), ("int32", "int64")]


@pytest.mark.parametrize("memory", ["torch", "transship"])
@pytest.mark.parametrize("before, after", CASTS, ids=str)
def test_casts_up_down_and_there(before, after, memory):
    source, target = getattr(torch, before), getattr(torch, after)
    tensors = [torch.randint(0, 100, (n,)).to(source) for n in (1, 7, 300, 300_000)] + [torch.randint(0, 100, (30, 40)).to(source)[:, ::3]]
    expected = [tensor.to(target) for tensor in tensors]
    options = {"cast": {source: target}, "memory": memory}
    assert_copied(transship.start_copy(tensors, GPU, **options).get(), expected, on(GPU))
    up = transship.start_copy(tensors, GPU).get()
    up[-1] = torch.randint(0, 100, (30, 40), device=GPU).to(source)[:, ::3]
    expected[-1] = up[-1].cpu().to(target)
    assert_copied(transship.start_copy(up, GPU, **options).get(), expected, on(GPU))
    assert_copied(transship.start_copy(up, "cpu", **options).get(), expected, on("cpu"))


def test_images_become_numbers():
    images = torch.randint(0, 256, (4, 3, 64, 64), dtype=torch.uint8).to(memory_format=torch.channels_last)
    result = transship.start_copy([images], GPU, cast=transship.Cast("float32", scale=1 / 255, bias=-0.5)).get()[0]
    assert result.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(result.cpu(), images.float() * torch.tensor(1 / 255) - 0.5)


def test_casts_share_a_storage_of_pytorch():
    gc.collect()
    before = torch.cuda.memory_allocated()
    results = transship.start_copy([torch.ones(n) for n in range(1, 50)], GPU, cast=torch.float16).get()
    assert len(storages(results)) == 1 and torch.cuda.memory_allocated() > before
    results[0].record_stream(torch.cuda.current_stream())


def test_out_of_memory_of_a_cast_is_that_of_pytorch():
    torch.cuda.set_per_process_memory_fraction((1 << 30) / torch.cuda.mem_get_info()[1])
    try:
        with pytest.raises(torch.OutOfMemoryError):
            transship.start_copy([torch.empty(1 << 29, dtype=torch.float16)], GPU, cast="float32")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


@pytest.mark.parametrize("memory", ["torch", "transship"])
@pytest.mark.parametrize("seed", seeds(8))
def test_to_all(seed, memory):
    rng = random.Random(seed)
    devices = [f"cuda:{number}" for number in range(torch.cuda.device_count())] + ["cpu"]
    data = [random_tree(rng, device=rng.choice(["cpu", "cpu", GPU])) for _ in range(6)]
    for handle, device in zip(transship.start_copy_to_all(data, devices, memory=memory), devices):
        assert_copied(handle.get(), data, on(device))


@two_gpus
def test_to_all_is_in_order_on_each_current_stream():
    streams = [torch.cuda.Stream(f"cuda:{number}") for number in range(2)]
    for stream in streams:
        spin(stream)
    with torch.cuda.stream(streams[0]), torch.cuda.stream(streams[1]):
        handles = transship.start_copy_to_all([torch.ones(3), torch.ones(1 << 18)], ["cuda:0", "cuda:1"])
        assert not handles[0].ready() and not handles[1].ready()
        for handle in handles:
            assert float(handle.get()[1].sum()) == 1 << 18


@two_gpus
def test_strided_tensors_of_dlpack_between_gpus():
    class Foreign:
        def __init__(self, tensor):
            self.tensor = tensor

        def __dlpack__(self, **options):
            return self.tensor.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.tensor.__dlpack_device__()

    base = torch.arange(4000.0, device=GPU).reshape(40, 100)
    result = transship.start_copy([Foreign(base[:, ::3]), Foreign(base.t()[3:50])], "cuda:1").get()
    assert_copied(result, [base[:, ::3], base.t()[3:50]], on("cuda:1"))
