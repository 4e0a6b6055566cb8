"""Structures of tensors up, down and between GPUs, in turns with ``.to()``, with what the time goes to.

    python python/benches/table.py [--quick] [--only PART] [--rounds N]

All times are medians, in microseconds, until the host knows that the copy is done; rows of large tensors say GB/s as well. The phases of
`start_copy`: read (the structure is taken apart, leaves are described), plan (chunks are laid out and allocated), launch (the copy is
handed to the library, small ones staged and submitted), get (tensors are made, the copy is waited for, the structure is built), drop (the
result goes). Where there is no GPU the same is done from the host to the host, through `transship.start_copy(..., copy=True)`, which says what
Python costs and nothing about a device.
"""

import argparse
import gc
import statistics
import time

import torch

import transship
from transship import multi_tensor_copier

SCENES = [
    (60, [30, 20, 40, 10, 50, 20]),
    (100, [60, 40, 30, 70, 20, 50]),
    (45, [10, 20, 10, 30, 20, 10]),
    (120, [80, 50, 60, 40, 70, 30]),
]


def headline():
    """The batch of a detector with 6 cameras: 16 samples, 528 tensors of four types, 153,628 bytes."""

    def camera(index, count):
        return {
            "name": f"camera {index}",
            "bounding_boxes": torch.rand(count, 4),
            "class_ids": torch.randint(0, 10, (count,)),
            "active": torch.rand(count) < 0.5,
            "depths": torch.rand(count),
            "proj_mat": torch.rand(3, 4),
        }

    def sample(objects, visible):
        truth = {"bounding_boxes_3d": torch.rand(objects, 7), "class_ids": torch.randint(0, 10, (objects,)), "active": torch.rand(objects) < 0.5}
        return {"cams_gt": [camera(index, count) for index, count in enumerate(visible)], "gt_data": truth}

    batch = [sample(*SCENES[index % 4]) for index in range(16)]
    leaves = tensors_of(batch)
    assert (len(leaves), sum(leaf.nbytes for leaf in leaves)) == (528, 153_628)
    return batch


def tensors_of(data):
    if isinstance(data, torch.Tensor):
        return [data]
    if isinstance(data, dict):
        data = data.values()
    elif not isinstance(data, (list, tuple)):
        return []
    return [leaf for item in data for leaf in tensors_of(item)]


def by_to(data, device):
    if isinstance(data, torch.Tensor):
        return data.to(device, copy=True)
    if isinstance(data, dict):
        return {key: by_to(item, device) for key, item in data.items()}
    if isinstance(data, list):
        return [by_to(item, device) for item in data]
    return data


def rows(quick, has_gpu):
    """Title, what makes the data, where from, where to, and how many rounds at most."""

    def many(count, size):
        return lambda: [torch.rand(size // 4) for _ in range(count)]

    gpu, host = ("cuda:0", "cpu") if has_gpu else ("cpu", "cpu")
    yield "headline up", headline, host, gpu, 1000
    if has_gpu:
        yield "headline down", headline, gpu, host, 500
    yield "10,000 x 4 KiB up", many(10_000, 4096), host, gpu, 60
    if quick:
        return
    yield "100,000 x 256 B up", many(100_000, 256), host, gpu, 12
    yield "2,000 x 64 KiB up", many(2_000, 1 << 16), host, gpu, 40
    yield "300 x 1 MiB up", many(300, 1 << 20), host, gpu, 30
    yield "1 GiB up", many(1, 1 << 30), host, gpu, 8
    if has_gpu:
        yield "300 x 1 MiB down", many(300, 1 << 20), gpu, host, 30
        yield "1 GiB down", many(1, 1 << 30), gpu, host, 8
    if torch.cuda.device_count() > 1:
        yield "headline between GPUs", headline, "cuda:0", "cuda:1", 500


def copier(has_gpu):
    if has_gpu:
        return lambda data, device: multi_tensor_copier.start_copy(data, device)._h
    return lambda data, device: transship.start_copy(data, device, copy=True, memory="torch")._h


def synchronize():
    if torch.cuda.is_available():
        for number in range(torch.cuda.device_count()):
            torch.cuda.synchronize(number)


def measure(start, data, device, rounds):
    """A dict of lists of microseconds."""
    times = {name: [] for name in ("to", "until done", "until it returns", "read", "plan", "launch", "get", "drop")}
    deadline = time.perf_counter() + 20
    for round_ in range(rounds):
        synchronize()
        begin = time.perf_counter()
        result = by_to(data, device)
        synchronize()
        times["to"].append(time.perf_counter() - begin)
        del result
        synchronize()
        begin = time.perf_counter()
        handle = start(data, device)
        returned = time.perf_counter()
        result = handle.get()
        done = time.perf_counter()
        phases = handle.phases()
        del handle, result
        dropped = time.perf_counter()
        times["until done"].append(done - begin)
        times["until it returns"].append(returned - begin)
        times["get"].append(done - returned)
        times["drop"].append(dropped - done)
        for name, microseconds in phases.items():
            times[name].append(microseconds / 1e6)
        if time.perf_counter() > deadline and round_ >= 4:
            break
    warm = max(1, len(times["to"]) // 10)
    return {name: [value * 1e6 for value in values[warm:]] for name, values in times.items()}


def show(title, times, size):
    median = {name: statistics.median(values) for name, values in times.items()}
    rate = ""
    if size >= 1 << 26:
        rate = f"   {size / median['to'] / 1e3:5.1f} -> {size / median['until done'] / 1e3:5.1f} GB/s"
    phases = "  ".join(f"{name} {median[name]:,.0f}" for name in ("read", "plan", "launch", "get", "drop"))
    print(f"{title:48} {median['to']:12,.0f} {median['until done']:12,.0f} {median['until it returns']:12,.0f}   {phases}{rate}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="the first rows, few rounds")
    parser.add_argument("--only", default="", help="rows whose title has this in it")
    parser.add_argument("--rounds", type=int, default=1 << 30, help="at most so many")
    arguments = parser.parse_args()
    torch.manual_seed(1)
    has_gpu = torch.cuda.is_available()
    print(f"{transship.backend_info()}, on {torch.cuda.get_device_name() if has_gpu else 'the host, to the host'}")
    print(f"{'us':48} {'.to()':>12} {'until done':>12} {'it returns':>12}")
    start = copier(has_gpu)
    gc.disable()
    for title, make, source, target, rounds in rows(arguments.quick, has_gpu):
        if arguments.only not in title:
            continue
        data = by_to(make(), source)
        rounds = min(rounds, arguments.rounds, 30 if arguments.quick else rounds)
        show(title, measure(start, data, target, rounds), sum(leaf.nbytes for leaf in tensors_of(data)))
        del data
        gc.collect()


if __name__ == "__main__":
    main()
