"""Copies that a device holds up, on CUDA and on the stand-in for libcuda: who waits for them waits until they are over."""

import asyncio
import contextlib
import ctypes
import os
import threading
import time

import numpy as np
import pytest

import transship

FOUND = [device for device in transship.devices() if device.startswith("cuda") and os.environ.get("TRANSSHIP_TEST_DRIVER", "cuda") == "cuda"]
pytestmark = pytest.mark.skipif(not FOUND, reason="there is no device of CUDA, and no stand-in for one")

DEVICE = FOUND[0] if FOUND else ""
PATIENCE = 60
NOT_READY = 600


class Driver:
    """Two streams beside the default one, on which a function of the host stands in front of all that comes later."""

    def __init__(self):
        self.cuda, self.libc = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL(None)
        self.device, self.streams = int(DEVICE.split(":")[1]), []
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self.device)
        self.call("cuCtxPushCurrent_v2", context)
        for _ in range(2):
            stream = ctypes.c_void_p()
            # One that the default stream does not wait for, nor it for that.
            self.call("cuStreamCreate", ctypes.byref(stream), 1)
            self.streams.append(stream.value)

    def call(self, name, *arguments):
        code = getattr(self.cuda, name)(*arguments)
        assert code == 0, f"{name}: {code}"

    @contextlib.contextmanager
    def stalled(self):
        semaphore = ctypes.create_string_buffer(64)
        self.libc.sem_init(semaphore, 0, 0)
        wait = ctypes.cast(self.libc.sem_wait, ctypes.c_void_p)
        self.call("cuLaunchHostFunc", None, wait, semaphore)
        try:
            yield
        finally:
            self.libc.sem_post(semaphore)
            self.call("cuCtxSynchronize")

    def is_busy(self, stream):
        """For longer than an idle stream says so."""
        for _ in range(20):
            code = self.cuda.cuStreamQuery(ctypes.c_void_p(stream))
            if code != NOT_READY:
                return False
            time.sleep(0.005)
        return True

    def close(self):
        for stream in self.streams:
            self.call("cuStreamSynchronize", ctypes.c_void_p(stream))
            self.call("cuStreamDestroy_v2", ctypes.c_void_p(stream))
        self.call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))
        self.call("cuDevicePrimaryCtxRelease_v2", self.device)


@pytest.fixture
def driver():
    driver = Driver()
    yield driver
    driver.close()


ARRAYS = [np.arange(1000, dtype="f4"), np.full(50_000, 7.0)]


def start():
    """A copy that comes behind the default stream."""
    there = transship.start_copy(ARRAYS, DEVICE, like="dlpack").get()
    return lambda: transship.start_copy(there, DEVICE, like="dlpack", copy=True)


def assert_copied(results):
    down = transship.start_copy(results, "cpu", like="numpy").get()
    assert all(one.tobytes() == other.tobytes() for one, other in zip(down, ARRAYS))


def ends(thread):
    thread.join(PATIENCE)
    return not thread.is_alive()


# Deliberate bugs: copies in `progress.rs` are done once they are handed to a stream; `wait_on` there makes the first stream wait only.
def test_what_was_handed_to_a_stream_is_waited_for_by_everybody(driver):
    copy, first, second = start(), *driver.streams
    got = []
    with driver.stalled():
        handle = copy()
        waiting = threading.Thread(target=lambda: got.append(handle.get()))
        waiting.start()
        result = handle.wait_on(first)
        assert not handle.ready() and handle.progress() is None and handle.report() is None and not handle.cancel()
        with pytest.raises(TimeoutError):
            handle.get(timeout=0.2)
        assert waiting.is_alive()
        again = handle.wait_on(second)
        assert all(one is other for one, other in zip(result, again))
        assert driver.is_busy(first) and driver.is_busy(second)
        assert not handle.ready()
    assert ends(waiting) and handle.get(timeout=PATIENCE)[0] is result[0] is got[0][0]
    assert handle.ready() and handle.wait_on(second)[0] is result[0]
    assert_copied(result)
    del result, again, got, handle


# Deliberate bug: `is_inherited` in `progress.rs` is false.
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_does_not_wait_for_a_thread_that_its_parent_has(driver):
    copy, got = start(), []
    with driver.stalled():
        handle = copy()
        waiting = threading.Thread(target=lambda: got.append(handle.get()))
        waiting.start()
        while handle.progress() is not None:
            time.sleep(0.001)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                if handle.ready():
                    handle.get(timeout=PATIENCE)
            except transship.Error as error:
                status = 0 if "fork" in str(error) else 2
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert waiting.is_alive() and not handle.ready()
    assert ends(waiting)
    assert_copied(got[0])
    del got, handle


# Deliberate bug: `check_device` in `handle.rs` lets all pass: the driver takes the stream for the default one of the target.
def test_a_stream_of_another_device_is_refused():
    torch = pytest.importorskip("torch")

    class Default:
        cuda_stream, device = 0, torch.device("cuda", int(DEVICE.split(":")[1]) + 1)

    handle = transship.start_copy(ARRAYS, DEVICE, like="dlpack", memory="transship")
    with pytest.raises(ValueError, match=f"a stream of {Default.device}, but results on {DEVICE}"):
        handle.wait_on(Default())
    assert_copied(handle.get())


# Deliberate bug: `poll` of a `Copy` that was handed over, in `progress.rs`, is ready.
def test_what_was_handed_to_a_stream_is_awaited(driver):
    async def awaited(handle):
        return await handle

    async def main(copy):
        with driver.stalled():
            handle = copy()
            before = asyncio.ensure_future(awaited(handle))
            await asyncio.sleep(0.02)
            handle.wait_on(driver.streams[0])
            after = asyncio.ensure_future(awaited(handle))
            await asyncio.sleep(0.2)
            assert not before.done() and not after.done()
        return await asyncio.wait_for(asyncio.gather(before, after), PATIENCE)

    first, second = asyncio.run(main(start()))
    assert first[1] is second[1]
    assert_copied(first)
    del first, second


# Deliberate bug: `give_up` in `progress.rs` lets go of what is in flight.
@pytest.mark.parametrize("awaits", [False, True])
def test_a_cancelled_copy_is_ready_once_it_writes_no_more(driver, awaits):
    there = transship.start_copy(ARRAYS, DEVICE, like="dlpack").get()
    held = [np.zeros_like(array) for array in ARRAYS]

    async def awaited(handle):
        return await handle

    async def main():
        with driver.stalled():
            handle = transship.start_copy_into(there, held)
            assert handle.cancel() and not handle.cancel()
            assert not handle.ready() and handle.progress() is None
            with pytest.raises(TimeoutError):
                handle.get(timeout=0.1)
            task = asyncio.ensure_future(awaited(handle)) if awaits else None
            await asyncio.sleep(0.1)
            assert not handle.ready() and not (task and task.done())
        with pytest.raises(transship.Error, match="cancel"):
            await asyncio.wait_for(task, PATIENCE) if task else handle.get(timeout=PATIENCE)
        assert handle.ready()

    asyncio.run(main())
    # They may be filled again at once.
    transship.start_copy_into(there, held).get()
    assert all(one.tobytes() == other.tobytes() for one, other in zip(held, ARRAYS))


def test_a_cancelled_copy_is_asked_until_it_is_ready(driver):
    there = transship.start_copy(ARRAYS, DEVICE, like="dlpack").get()
    with driver.stalled():
        handle = transship.start_copy_into(there, [np.zeros_like(array) for array in ARRAYS])
        assert handle.cancel() and not handle.ready()
    deadline = time.monotonic() + PATIENCE
    while not handle.ready():
        assert time.monotonic() < deadline
        time.sleep(0.001)
    with pytest.raises(transship.Error, match="cancel"):
        handle.get()
