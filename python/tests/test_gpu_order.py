"""In whose order tensors of a GPU are read and written. All of it is skipped where PyTorch has none."""

import pytest
import torch

import transship
from test_gpu import GPU, spin

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch has no GPU here")


# Deliberate bug: `_start_next` in `_prefetch.py` says nothing of the caller's stream.
@pytest.mark.parametrize("options", [{"copy": True}, {"cast": "float16"}, {"copy": True, "memory": "transship", "like": "torch"}], ids=["copy", "cast", "transship"])
def test_prefetching_comes_behind_what_the_source_does_on_the_device(options):
    def batches():
        for number in range(1, 5):
            tensors = [torch.zeros(n, device=GPU) for n in (1 << 20, 100, 50)]
            torch.cuda.synchronize()
            spin(torch.cuda.current_stream(), 200_000_000)
            yield [tensor.fill_(number) for tensor in tensors]

    for caller in (torch.cuda.default_stream(), torch.cuda.Stream()):
        with torch.cuda.stream(caller):
            for number, batch in enumerate(transship.prefetch(batches(), GPU, **options), 1):
                assert all(bool((tensor == number).all()) for tensor in batch)
        assert number == 4


class Produced:
    """A tensor that another library fills on a stream of its own, and hands out in the order of the stream that it is asked for."""

    def __init__(self, value):
        self.stream, self.asked = torch.cuda.Stream(), []
        self.tensor = torch.zeros(1 << 20, device=GPU)
        torch.cuda.synchronize()
        spin(self.stream)
        with torch.cuda.stream(self.stream):
            self.tensor.fill_(value)

    def __dlpack__(self, *, stream=None, **options):
        self.asked.append(stream)
        with torch.cuda.stream(self.stream):
            return self.tensor.__dlpack__(stream=stream, **options)

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()


# Deliberate bug: `ask` in `dlpack.rs` names the default stream.
@pytest.mark.parametrize("memory", ["torch", "transship"])
def test_a_tensor_of_another_library_is_read_behind_what_fills_it(memory):
    current = torch.cuda.Stream()
    for target in ("cpu", GPU):
        produced = Produced(5)
        with torch.cuda.stream(current):
            copied = transship.start_copy([produced], target, memory=memory, copy=True).get()
        assert set(produced.asked) == {current.cuda_stream}
        assert bool((copied[0] == 5).all())
    produced = Produced(6)
    assert bool((transship.start_copy([produced], "cpu", memory=memory).get()[0] == 6).all())
    assert set(produced.asked) == {1}


# Deliberate bug: `ask` in `dlpack.rs` names the default stream.
def test_a_tensor_of_another_library_is_filled_behind_what_writes_it():
    current, produced = torch.cuda.Stream(), Produced(9)
    with torch.cuda.stream(current):
        transship.start_copy_into([torch.full((1 << 20,), 3.0)], [produced]).get()
    torch.cuda.synchronize()
    assert set(produced.asked) == {current.cuda_stream}
    assert bool((produced.tensor == 3).all())


def being_filled(value):
    """A tensor of transship that is not filled yet: a stream waits for that, and the host does not."""
    filling, compute = torch.cuda.Stream(), torch.cuda.Stream()
    spin(filling)
    with torch.cuda.stream(filling):
        handle = transship.start_copy([torch.full((1 << 18,), value)], GPU, memory="transship", like="dlpack")
    return handle.wait_on(compute)


# Deliberate bug: `put_in_order` in `tensor.rs` waits for nothing.
def test_a_tensor_of_transship_is_read_behind_the_copy_that_fills_it():
    transship.start_copy(being_filled(1.0), "cpu", like="torch").get()
    for stream in (torch.cuda.Stream(), torch.cuda.default_stream()):
        for target in ("cpu", GPU):
            with torch.cuda.stream(stream):
                copied = transship.start_copy(being_filled(3.0), target, like="torch", copy=True).get()
            assert bool((copied[0] == 3).all())


# Deliberate bug: `put_in_order` in `tensor.rs` waits for nothing.
def test_a_tensor_of_transship_is_filled_again_behind_the_copy_that_fills_it():
    other = torch.cuda.Stream()
    for _ in range(2):
        held = being_filled(3.0)
        with torch.cuda.stream(other):
            transship.start_copy_into([torch.full((1 << 18,), 5.0)], held).get()
        torch.cuda.synchronize()
        assert bool((transship.start_copy(held, "cpu", like="torch").get()[0] == 5).all())
