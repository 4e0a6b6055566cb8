"""Results that are handed to streams of a GPU. All of it is skipped where PyTorch has none."""

import gc

import pytest
import torch
from test_gpu import GPU, spin

import transship

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch has no GPU here")


# Deliberate bugs: copies in `progress.rs` are done once they are handed to a stream; a second stream is not made to wait.
@pytest.mark.parametrize("memory", ["torch", "transship"])
def test_a_handle_that_was_handed_over_still_waits(memory):
    copies, first, second = torch.cuda.Stream(), torch.cuda.Stream(), torch.cuda.Stream()
    source = torch.full((1 << 18,), 3.0, device=GPU)
    # Kernels that are loaded meanwhile would wait for those that run.
    transship.start_copy([source, source[:5]], GPU, copy=True, memory=memory).get()[0].sum()
    torch.cuda.synchronize()
    spin(copies, 2_000_000_000)
    with torch.cuda.stream(copies):
        handle = transship.start_copy([source, source[:5]], GPU, copy=True, memory=memory)
    handle.wait_on(first)
    assert not handle.ready() and not handle.cancel()
    with pytest.raises(TimeoutError):
        handle.get(timeout=0.01)
    result = handle.wait_on(second)
    with torch.cuda.stream(second):
        sums = result[0].sum(), result[1].sum()
    assert not copies.query() and not first.query() and not second.query()
    assert handle.get(timeout=60)[0] is result[0] and handle.ready()
    second.synchronize()
    assert [float(one) for one in sums] == [3.0 * (1 << 18), 15.0]


# Deliberate bug: `behind_copies` in `torch/order.rs` has no event.
def test_a_stream_waits_for_what_pytorch_copies_itself():
    copies, compute = torch.cuda.Stream(), torch.cuda.Stream()
    odd = torch.full((1 << 18,), 3 + 4j, device=GPU).conj()
    torch.view_as_real(odd.to(GPU, copy=True)).sum(0)
    torch.cuda.synchronize()
    with torch.cuda.stream(copies):
        # Its memory is used again by what comes next on this stream.
        torch.full((1 << 18,), 1j, device=GPU)
        torch.cuda._sleep(400_000_000)
        handle = transship.start_copy([odd, "text"], GPU, copy=True)
    result = handle.wait_on(compute)
    with torch.cuda.stream(compute):
        total = torch.view_as_real(result[0].resolve_conj()).sum(0)
    assert not copies.query() and result[1] == "text"
    compute.synchronize()
    assert total.tolist() == [3.0 * (1 << 18), -4.0 * (1 << 18)]


ODD_LAYOUTS = {
    "sparse": lambda: torch.eye(3).to_sparse(),
    "csr": lambda: torch.eye(3).to_sparse_csr(),
    "csc": lambda: torch.eye(3).to_sparse_csc(),
    "quantised": lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "jagged": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
}


# Deliberate bug: `record_stream` in `torch/order.rs` asks every tensor by itself.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ODD_LAYOUTS)
def test_tensors_of_other_layouts_are_handed_to_a_stream(name):
    tensor, compute = ODD_LAYOUTS[name](), torch.cuda.Stream()
    result = transship.start_copy([tensor, torch.ones(3)], GPU).wait_on(compute)
    compute.synchronize()
    assert result[0].device == torch.device(GPU) and result[0].layout == tensor.layout
    assert float(result[1].sum()) == 3


# Deliberate bug: `record` in `handle.rs` records streams of PyTorch's only.
@pytest.mark.parametrize("odd", [False, True], ids=["ours", "by PyTorch"])
def test_memory_is_kept_for_a_stream_that_is_a_number(odd):
    stream = torch.cuda.Stream()
    source = torch.full((1 << 20,), 3 + 0j, device=GPU) if odd else torch.full((1 << 20,), 3.0)
    torch.cuda.synchronize()
    result = transship.start_copy([source.conj() if odd else source], GPU, copy=True).wait_on(stream.cuda_stream)
    with torch.cuda.stream(stream):
        torch.cuda._sleep(400_000_000)
        total = (torch.view_as_real(result[0].resolve_conj()) if odd else result[0]).sum()
    del result
    gc.collect()
    # References of the copy go with the next call.
    transship.start_copy([torch.ones(1)], GPU).get()
    again = [torch.full((1 << 20,), -1 + 0j if odd else -1.0, device=GPU) for _ in range(4)]
    stream.synchronize()
    assert float(total) == 3.0 * (1 << 20)
    del again


def test_the_default_stream_by_its_number():
    result = transship.start_copy([torch.full((5,), 3.0)], GPU).wait_on(torch.cuda.default_stream().cuda_stream)
    assert float(result[0].sum()) == 15
