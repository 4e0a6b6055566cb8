"""torch.distributed on two GPUs: the floats of the detector's batch, tensor by tensor and coalesced.

`python rival.py`. Prints medians of rank 0, from the call until its device is done.
"""

import os
import statistics
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

SCENES = [(60, [30, 20, 40, 10, 50, 20]), (100, [60, 40, 30, 70, 20, 50]), (45, [10, 20, 10, 30, 20, 10]), (120, [80, 50, 60, 40, 70, 30])]
WARM_UP, TIMES = 10, 100


def floats(device):
    """As many tensors of float32 as the batch has, of the same shapes."""
    shapes = []
    for index in range(16):
        objects, visible = SCENES[index % len(SCENES)]
        for count in visible:
            shapes += [(count, 4), (count,), (3, 4)]
        shapes.append((objects, 7))
    return [torch.ones(shape, device=device) for shape in shapes]


def each(tensors):
    for tensor in tensors:
        dist.all_reduce(tensor)


def each_async(tensors):
    for work in [dist.all_reduce(tensor, async_op=True) for tensor in tensors]:
        work.wait()


def coalesced(tensors):
    with dist._coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor)


def flattened(tensors):
    flat = _flatten_dense_tensors(tensors)
    dist.all_reduce(flat)
    torch._foreach_copy_(tensors, _unflatten_dense_tensors(flat, tensors))


def median(work, tensors):
    times = []
    for index in range(WARM_UP + TIMES):
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.synchronize()
        started = time.perf_counter()
        work(tensors)
        torch.cuda.synchronize()
        if index >= WARM_UP:
            times.append(time.perf_counter() - started)
    return statistics.median(times) * 1e6


def rank(number):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29512")
    torch.cuda.set_device(number)
    dist.init_process_group("nccl", rank=number, world_size=2)
    tensors = floats(number)
    one = [torch.ones(sum(tensor.numel() for tensor in tensors), device=number)]
    if number == 0:
        print(f"PyTorch {torch.__version__}, {len(tensors)} tensors, {4 * one[0].numel()} bytes")
    rows = [("all_reduce for each", each, tensors), ("the same with async_op", each_async, tensors),
            ("_coalescing_manager", coalesced, tensors), ("flattened, one all_reduce, copied back", flattened, tensors),
            ("one all_reduce of as many bytes", each, one)]
    for what, work, given in rows:
        took = median(work, given)
        for tensor in given:
            tensor.fill_(1)
        if number == 0:
            print(f"{what:<72} {took:9.1f} us")
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(rank, nprocs=2)
