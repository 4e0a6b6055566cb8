"""Devices through ``transship.start_copy`` without PyTorch: on real ones, and on the stand-in for libcuda."""

import asyncio
import contextlib
import ctypes
import gc
import importlib.util
import os
import random
import subprocess
import sys
import threading

import numpy as np
import pytest

import transship

# Those of one driver, such as "hip", if the environment names one.
DRIVER = os.environ.get("TRANSSHIP_TEST_DRIVER", "")
FOUND = [device for device in transship.devices() if device.startswith(DRIVER)]

pytestmark = pytest.mark.skipif(not FOUND, reason="there is no device, and no stand-in for one")
two_devices = pytest.mark.skipif(len(FOUND) < 2, reason="there are no two devices")

DEVICES = FOUND or [""]
TYPES = ["u1", "i1", "u2", "i2", "f2", "u4", "i4", "f4", "u8", "i8", "f8", "c8", "c16", "?"]


def random_arrays(rng, count):
    arrays = []
    for _ in range(count):
        shape = [rng.randrange(7) for _ in range(rng.randrange(4))]
        if rng.random() < 0.05:
            shape = [rng.randrange(300_000)]
        array = np.frombuffer(rng.randbytes(int(np.prod(shape)) * 16), np.uint8)
        array = (array[: int(np.prod(shape)) * np.dtype(rng.choice(TYPES)).itemsize] % 2).view(np.uint8)
        kind = np.dtype(rng.choice([t for t in TYPES if len(array) % np.dtype(t).itemsize == 0 and len(array) // np.dtype(t).itemsize]) if len(array) else "f4")
        array = array.view(kind)
        arrays.append(array[:: rng.choice([1, 1, 1, 2, -1])] if array.ndim and len(array) else array)
    return arrays


def assert_arrays(results, arrays):
    assert len(results) == len(arrays)
    for result, array in zip(results, arrays):
        assert result.dtype == array.dtype and result.shape == array.shape
        assert result.tobytes() == array.tobytes()


def down(tree):
    return transship.start_copy(tree, "cpu", like="numpy").get()


@pytest.mark.parametrize("seed", range(8))
def test_up_and_down(seed):
    rng = random.Random(seed)
    arrays = random_arrays(rng, rng.randrange(1, 60))
    options = {"packing": rng.random() < 0.7, "alignment": rng.choice([1, 3, 16, 24, 256]), "max_chunk_bytes": rng.choice([1, 4096, 1 << 25])}
    up = transship.start_copy(arrays, DEVICES[0], like="dlpack", memory="transship", **options).get()
    assert all(tensor.device == DEVICES[0] for tensor in up)
    assert_arrays(down(up), arrays)


# Deliberate bug: `own` in `handle.rs` leaves the offset out.
@pytest.mark.parametrize("largest", [1 << 25, 4096])
def test_many_small_arrays(largest):
    rng = random.Random(largest)
    arrays = [np.full(rng.randrange(1, 40), index, rng.choice(["f4", "i8", "u1"])) for index in range(200)]
    for _ in range(3):
        up = transship.start_copy(arrays, DEVICES[0], like="dlpack", max_chunk_bytes=largest).get()
        assert_arrays(down(up), arrays)


@pytest.mark.parametrize("seed", range(8))
def test_parts_of_what_was_packed_come_down(seed):
    """Neighbours on a device are copied as one: some of them, in any order, some twice, with others between them."""
    rng = random.Random(seed)
    arrays = [np.frombuffer(rng.randbytes(4 * rng.randrange(1, 200)), rng.choice(["u1", "u2", "f4"])) for _ in range(80)]
    packed = {"packing": True, "alignment": rng.choice([1, 16, 24, 256]), "max_chunk_bytes": rng.choice([1 << 11, 1 << 25])}
    up = transship.start_copy(arrays, DEVICES[0], like="dlpack", memory="transship", **packed).get()
    chosen = rng.choices(range(len(arrays)), k=60) if seed % 2 else rng.sample(range(len(arrays)), 60)
    results = transship.start_copy([up[number] for number in chosen], "cpu", like="numpy", alignment=rng.choice([1, packed["alignment"]])).get()
    assert_arrays(results, [arrays[number] for number in chosen])
    assert_arrays(down(up), arrays)


def test_what_is_there_already_is_kept():
    up = transship.start_copy([np.ones(3), np.ones(4)], DEVICES[0], like="dlpack").get()
    assert transship.start_copy(up, DEVICES[0], like="dlpack").get()[0] is up[0]
    copied = transship.start_copy(up, DEVICES[0], like="dlpack", copy=True).get()
    assert copied[0] is not up[0]
    assert_arrays(down(copied), [np.ones(3), np.ones(4)])


@two_devices
def test_between_devices():
    arrays = random_arrays(random.Random(5), 40)
    first = transship.start_copy(arrays, DEVICES[0], like="dlpack").get()
    second = transship.start_copy(first, DEVICES[1], like="dlpack").get()
    assert {tensor.device for tensor in second} == {DEVICES[1]}
    assert_arrays(down(second), arrays)
    assert_arrays(down([*first, *second]), [*arrays, *arrays])


def test_results_are_kept_by_whoever_has_them():
    up = transship.start_copy([np.full(5, 7.0), np.ones(1000)], DEVICES[0], like="dlpack").get()
    arrays = down(up)
    del up
    gc.collect()
    for _ in range(20):
        transship.start_copy([np.zeros(5), np.zeros(1000)], DEVICES[0], like="dlpack").get()
    assert arrays[0].tolist() == [7.0] * 5


@pytest.mark.parametrize("pinned", [True, False])
@pytest.mark.parametrize("background", [True, False])
def test_ways_to_copy(pinned, background):
    arrays = [np.arange(n) for n in (3, 100_000, 2_000_000)]
    options = {"pinned": pinned, "background": background}
    up = transship.start_copy(arrays, DEVICES[0], like="dlpack", **options).get()
    assert_arrays(transship.start_copy(up, "cpu", like="numpy", **options).get(), arrays)


# Deliberate bug: `start` in `transfer.rs` gives `Busy` back.
def test_a_full_line_is_waited_for_and_is_no_error():
    """Without the background the caller's thread carries copies out, until no pinned memory is left for them."""
    arrays = [np.full(1 << 20, number, np.uint8) for number in range(60)]
    handles = [transship.start_copy([array] * 3, DEVICES[0], like="dlpack", background=False) for array in arrays for _ in range(4)]
    for number, handle in enumerate(handles):
        assert all(result.tobytes() == arrays[number // 4].tobytes() for result in down(handle.get()))


def test_awaiting():
    async def main():
        handles = [transship.start_copy([np.full(n, 2.0)] * 2, DEVICES[0], like="dlpack") for n in (1, 1000, 1 << 20)]
        return await asyncio.wait_for(asyncio.gather(*handles), 60)

    for result in asyncio.run(main()):
        assert down(result)[0].min() == 2


def test_awaiting_can_be_given_up():
    async def main():
        task = asyncio.ensure_future(_wait(transship.start_copy([np.ones(1 << 20)], DEVICES[0], like="dlpack")))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def _wait(handle):
        await asyncio.sleep(0)
        return await handle

    asyncio.run(main())
    assert down(transship.start_copy([np.ones(3)], DEVICES[0], like="dlpack").get())[0].sum() == 3


def test_cancelling():
    for count in (1, 40):
        handle = transship.start_copy([np.ones(1 << 16)] * count, DEVICES[0], like="dlpack")
        if handle.cancel():
            with pytest.raises(transship.Error):
                handle.get()
    assert down(transship.start_copy([np.ones(3)], DEVICES[0], like="dlpack").get())[0].sum() == 3


def test_threads():
    failures = []

    def work(seed):
        try:
            rng = random.Random(seed)
            for _ in range(6):
                arrays = random_arrays(rng, 20)
                assert_arrays(down(transship.start_copy(arrays, DEVICES[0], like="dlpack").get()), arrays)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_dropping_handles_in_flight():
    for n in (3, 1 << 18):
        for _ in range(10):
            transship.start_copy([np.ones(n), np.ones(5)], DEVICES[0], like="dlpack")
    assert down(transship.start_copy([np.ones(3)], DEVICES[0], like="dlpack").get())[0].sum() == 3


class Strided:
    """Every ``step``-th element of a matrix's rows, or the first one again and again, of a library that says so by DLPack."""

    def __init__(self, tensor, step):
        self.tensor, self.step = tensor, step

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()

    def __dlpack__(self, stream=None):
        capsule = self.tensor.__dlpack__(stream=stream)
        get = ctypes.pythonapi.PyCapsule_GetPointer
        get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        described = DLTensor.from_address(get(capsule, b"dltensor"))
        described.shape[1] //= self.step or 1
        described.strides[1] *= self.step
        return capsule


class DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("dtype", ctypes.c_uint8 * 4),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


# Deliberate bug: `source` in `transfer.rs` makes every leaf contiguous.
@pytest.mark.parametrize("kind", ["u1", "f4", "c16"])
def test_strided_tensors_of_dlpack(kind):
    array = (np.arange(40 * 12) % 251).astype(kind).reshape(40, 12)
    up = transship.start_copy(array, DEVICES[0], like="dlpack").get()
    expected = array[:, ::3]
    for target in ["cpu", *FOUND[:2]]:
        there = transship.start_copy([Strided(up, 3), up], target, like="dlpack", copy=True).get()
        assert_arrays(down(there), [expected, array])
    repeated = np.broadcast_to(array[:, :1], array.shape)
    for options in ({"pinned": False}, {}):
        for handle in transship.start_copy_to_all([Strided(up, 3), Strided(up, 0), up], ["cpu", "cpu"], like="numpy", **options):
            assert_arrays(handle.get(), [expected, repeated, array])


@pytest.mark.parametrize("seed", range(4))
def test_into_memory_that_is_held(seed):
    rng = random.Random(seed)
    arrays = random_arrays(rng, 40)
    held = transship.start_copy([np.zeros_like(array) for array in arrays], DEVICES[0], like="dlpack").get()
    addresses = [tensor.__dlpack__() for tensor in held]
    result = transship.start_copy_into(arrays, held).get()
    del addresses
    assert all(one is other for one, other in zip(result, held))
    assert_arrays(down(held), arrays)
    host = [np.zeros(array.shape, array.dtype) for array in arrays]
    transship.start_copy_into(held, host).get()
    assert_arrays(host, arrays)
    matrices = [np.zeros((*array.shape, 3), array.dtype) for array in arrays]
    transship.start_copy_into(held, [matrix[..., 1] for matrix in matrices]).get()
    assert_arrays([matrix[..., 1] for matrix in matrices], arrays)
    assert not any(matrix[..., 0].any() or matrix[..., 2].any() for matrix in matrices)


@two_devices
def test_into_memory_of_another_device():
    arrays = random_arrays(random.Random(3), 30)
    first = transship.start_copy(arrays, DEVICES[0], like="dlpack").get()
    second = transship.start_copy([np.zeros_like(array) for array in arrays], DEVICES[1], like="dlpack").get()
    transship.start_copy_into(first, second).get()
    assert_arrays(down(second), arrays)
    with pytest.raises(ValueError, match=r"\[1\] lies on another device"):
        transship.start_copy_into([np.ones(3), np.ones(3)], [first[0], second[0]])


# Deliberate bugs: `in_groups` in `typed.rs` puts all into one group; `is_flat` in `launch` is always true.
@pytest.mark.parametrize("target", ["up", "down", "there", "across"])
def test_casts(target):
    array = (np.arange(40 * 12) % 251).astype("f4").reshape(40, 12)
    arrays = [np.linspace(-3, 3, n, dtype=dtype) for n in (1, 7, 3000) for dtype in ("f2", "f4", "f8")] + [np.arange(9, dtype="u1"), array]
    source, place = arrays, DEVICES[0]
    if target != "up":
        source = transship.start_copy(arrays, DEVICES[0], like="dlpack").get()
        source[-1] = Strided(source[-1], 3)
        arrays = [*arrays[:-1], array[:, ::3]]
        place = {"down": "cpu", "there": DEVICES[0], "across": FOUND[-1]}[target]
    to = ["float16", "float32", "float64", None]
    cast = lambda path, leaf: transship.Cast("float32", scale=0.5, bias=1) if path[0] == len(arrays) - 2 else to[path[0] % 4]
    results = transship.start_copy(source, place, cast=cast, like="dlpack", copy=True).get()
    expected = [array.astype(to[number % 4] or array.dtype) for number, array in enumerate(arrays)]
    expected[-2] = arrays[-2].astype("f4") * np.float32(0.5) + np.float32(1)
    assert_arrays(down(results), expected)


def test_integers_of_a_device_saturate_or_are_refused():
    up = transship.start_copy([np.array([1, 300, -5])], DEVICES[0], like="dlpack").get()
    with pytest.raises(transship.Error, match=r"\[0\].*saturating"):
        transship.start_copy(up, "cpu", like="numpy", cast="uint8")
    assert transship.start_copy(up, "cpu", like="numpy", cast=transship.Cast("uint8", saturating=True)).get()[0].tolist() == [1, 255, 0]


@pytest.mark.parametrize("seed", range(4))
def test_to_all(seed):
    rng = random.Random(seed)
    arrays = random_arrays(rng, rng.randrange(1, 60))
    there = transship.start_copy(random_arrays(rng, 5), DEVICES[0], like="dlpack").get()
    devices = [*FOUND, "cpu", DEVICES[0]]
    options = {"packing": rng.random() < 0.7, "alignment": rng.choice([1, 3, 16, 24]), "background": rng.random() < 0.5}
    handles = transship.start_copy_to_all([*arrays, *there], devices, like="dlpack", **options)
    expected = [*arrays, *down(there)]
    for handle, device in zip(handles, devices):
        results = handle.get()
        assert all(tensor.device == device for tensor in results if isinstance(tensor, transship.Tensor) and device != "cpu")
        assert_arrays(down(results), expected)
        if device == DEVICES[0]:
            assert all(one is other for one, other in zip(results[len(arrays) :], there))


def test_to_all_again_and_again_from_threads():
    failures = []

    def work(seed):
        try:
            rng = random.Random(seed)
            for _ in range(5):
                arrays = random_arrays(rng, 20)
                handles = transship.start_copy_to_all(arrays, FOUND, like="dlpack")
                if rng.random() < 0.3:
                    handles.pop(rng.randrange(len(handles)))
                for handle in handles:
                    assert_arrays(down(handle.get()), arrays)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


@pytest.fixture
def driver():
    """The stand-in for libcuda."""
    if not DEVICES[0].startswith("cuda"):
        pytest.skip("streams are stalled by functions of libcuda")
    driver = ctypes.CDLL("libcuda.so.1")
    if not hasattr(driver, "driver_sim_control"):
        pytest.skip("a driver that is none of ours may wait for what is stalled")
    return driver


@contextlib.contextmanager
def context_of(driver, device):
    number, context = int(device.split(":")[1]), ctypes.c_uint64()
    assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), number) == 0
    assert driver.cuCtxPushCurrent_v2(context) == 0
    yield
    assert driver.cuCtxPopCurrent_v2(ctypes.byref(context)) == 0
    assert driver.cuDevicePrimaryCtxRelease_v2(number) == 0


@pytest.fixture
def stalled(driver):
    """The default stream of a device stands still, from when this is called until what it returns is."""
    go, waits, kept = threading.Event(), ctypes.CFUNCTYPE(None, ctypes.c_void_p), []

    def stall(device):
        kept.append(waits(lambda _: go.wait(60) and None))
        with context_of(driver, device):
            assert driver.cuLaunchHostFunc(ctypes.c_uint64(0), kept[-1], None) == 0
        return go.set

    yield stall
    go.set()
    # What was stalled is over before the function goes.
    for device in FOUND:
        with context_of(driver, device):
            assert driver.cuCtxSynchronize() == 0


@pytest.fixture
def stream(driver):
    """The handle of a stream of the first device that waits for no default one."""
    made = ctypes.c_uint64()
    with context_of(driver, DEVICES[0]):
        assert driver.cuStreamCreate(ctypes.byref(made), 1) == 0
    yield made.value
    gc.collect()
    with context_of(driver, DEVICES[0]):
        assert driver.cuStreamSynchronize(made) == 0
        assert driver.cuStreamDestroy_v2(made) == 0


def still_waits(handle):
    try:
        handle.get(timeout=0.5)
        return False
    except TimeoutError:
        return True


# Deliberate bug: `start` in `into.rs` waits for no default stream.
def test_into_memory_that_another_library_still_writes(stalled):
    """Without PyTorch others hand their tensors out in order of the default stream."""
    held = transship.start_copy([np.zeros(1000)], DEVICES[0], like="dlpack").get()
    transship.start_copy_into([np.ones(1000)], held).get()
    go = stalled(DEVICES[0])
    handle = transship.start_copy_into([np.full(1000, 2.0)], held)
    assert still_waits(handle)
    go()
    handle.get()
    assert_arrays(down(held), [np.full(1000, 2.0)])


# Deliberate bug: `put_in_order` in `tensor.rs` waits for nothing.
@two_devices
def test_a_tensor_that_is_not_filled_yet_is_waited_for(stalled, stream):
    """The copy that fills it has been handed over to a stream, and runs when another one reads it."""
    far = transship.start_copy([np.full(1000, 7.0)], DEVICES[1], like="dlpack").get()
    # Once, so that nothing is allocated later.
    assert_arrays(down(transship.start_copy(transship.start_copy(far, DEVICES[0], like="dlpack").get(), DEVICES[1], like="dlpack").get()), [np.full(1000, 7.0)])
    go = stalled(DEVICES[1])
    near = transship.start_copy(far, DEVICES[0], like="dlpack").wait_on(stream)
    back = [transship.start_copy(near, device, like="dlpack") for device in ("cpu", DEVICES[1])]
    back += transship.start_copy_to_all(near, [DEVICES[1]], like="dlpack")
    assert all(still_waits(handle) for handle in back)
    go()
    for handle in back:
        assert_arrays(down(handle.get()), [np.full(1000, 7.0)])


class Changing:
    """A container that holds another array each time that it is looked at."""

    def __init__(self, *arrays):
        self.arrays = list(arrays)

    def look(self):
        return [self.arrays.pop(0)], None


transship.register_container(Changing, Changing.look, lambda context, items: items)


# Deliberate bug: `start_copies` in `calls.rs` compares the number of leaves alone.
def test_a_structure_that_changes_between_two_looks_is_not_read_beyond_its_end():
    """Without an error the second array is read as if it had the elements of the first one: the targets share nothing."""
    tree = [np.zeros(4, np.int64), Changing(np.ones(1 << 20), np.ones(1 << 20, np.uint8))]
    with pytest.raises(RuntimeError, match="changed while it was read"):
        transship.start_copy_to_all(tree, [DEVICES[0], "cpu"], like="dlpack", cast={"float64": "float32"})


# Deliberate bug: `place_of` in `named_device.rs` takes "cuda" for CUDA whatever PyTorch is made for.
@pytest.mark.skipif(not DEVICES[0].startswith("hip"), reason="there is no device of HIP, and no stand-in for one")
def test_with_pytorch_for_rocm_devices_of_hip_are_called_as_it_calls_them():
    if importlib.util.find_spec("torch") is None:
        pytest.skip("there is no PyTorch")
    program = f"""
import torch
torch.version.hip = "6.4"
import numpy as np, transship
device = "{DEVICES[0].replace("hip", "cuda")}"
there = transship.start_copy([np.ones(3)], device, memory="transship", like="dlpack").get()[0]
assert there.device == "{DEVICES[0]}", there.device
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
