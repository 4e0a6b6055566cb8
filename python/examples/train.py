"""A training loop that copies each tensor with ``.to()``, or with ``--transship`` in two changed lines, and how long the GPU was idle.

    python python/examples/train.py [--transship | --ring] [--device cuda:0] [--steps 200] [--trace trace.json]

Each batch has what a detector with 6 cameras is trained on: 528 small arrays in lists of dicts, and 8 images. 4 worker processes make it.
With ``--ring`` they write it to page-locked memory that the GPU copies from (``transship.LoaderRing``; Linux). That is a few lines more, and the trainer's
thread, which otherwise unpickles 528 arrays for each batch, does little more than to start the copy.
The times are of steps without PyTorch's profiler, which slows the trainer's thread down. How long kernels run is what it saw of 20 steps behind them;
``--trace`` writes that, and ``python/examples/draw_trace.py`` draws it.
"""

import argparse
import json
import pathlib
import tempfile
import time

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile, record_function

import transship

# Steps that are not timed, and those at the end that the profiler looks at.
WARM_UP, PROFILED = 40, 20


class Frames(torch.utils.data.IterableDataset):
    """Batches without end."""

    def __init__(self, size):
        self.size = size

    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        rng = np.random.default_rng(worker.id if worker else 0)
        images = torch.from_numpy(rng.integers(0, 256, (8, 3, self.size, self.size), dtype=np.uint8))
        while True:
            yield {"samples": [sample(rng) for _ in range(16)], "images": [image.clone() for image in images]}


def sample(rng):
    """33 arrays."""
    cameras = [objects(rng, int(rng.integers(5, 60))) for _ in range(6)]
    return {"cameras": cameras, "boxes": rng.random((40, 7), np.float32), "ids": rng.integers(0, 10, 40), "active": rng.random(40) < 0.5}


def objects(rng, count):
    return {
        "boxes": rng.random((count, 4), np.float32),
        "ids": rng.integers(0, 10, count),
        "active": rng.random(count) < 0.5,
        "depths": rng.random(count, np.float32),
        "projection": rng.random((3, 4), np.float32),
    }


def slot_bytes(size):
    """Room for any batch: 8 images, and 528 arrays of at most 59 objects."""
    return 8 * 3 * size * size + (1 << 20)


def as_it_is(batch):
    return batch


def to_device(data, device):
    """What the program does without transship: a copy for each tensor."""
    if isinstance(data, dict):
        return {key: to_device(value, device) for key, value in data.items()}
    if isinstance(data, list):
        return [to_device(item, device) for item in data]
    return torch.as_tensor(data).to(device, non_blocking=True)


class Model(torch.nn.Module):
    """Some convolutions over the images, and a loss in which every sample has a part."""

    def __init__(self, width):
        super().__init__()
        layers = [torch.nn.Conv2d(3, width, 3, 2, 1)]
        for _ in range(3):
            layers += [torch.nn.ReLU(), torch.nn.Conv2d(width, width, 3, 1, 1)]
        self.layers = torch.nn.Sequential(*layers, torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1))

    def forward(self, batch):
        images = torch.stack(batch["images"]).float() / 255
        found = self.layers(images).mean()
        wanted = torch.stack([sample["boxes"].mean() for sample in batch["samples"]]).mean()
        return (found - wanted) ** 2


def train(arguments):
    device = torch.device(arguments.device)
    # By default workers make tensors of arrays: each has shared memory of its own, and costs the loader more than the copy does.
    collate_fn = None if arguments.tensors else as_it_is
    if arguments.ring:
        ring = transship.LoaderRing(slot_bytes(arguments.size), device=device)  # room for the largest batch
        collate_fn = ring.collate(collate_fn)
    model = Model(arguments.width).to(device)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    loader = torch.utils.data.DataLoader(
        Frames(arguments.size),
        batch_size=None,
        num_workers=arguments.workers,
        prefetch_factor=4,
        collate_fn=collate_fn,
    )
    source = ring.batches(loader) if arguments.ring else loader
    batches = transship.prefetch(source, device, like="torch") if arguments.transship else loader  # the first line that changes
    tracing = profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])])
    losses = []

    def steps(iterator, count):
        """The seconds of a step, and of that until the batch was there."""
        finish(device)
        begin, waited = time.perf_counter(), 0.0
        for _ in range(count):
            asked = time.perf_counter()
            with record_function("next batch"):
                batch = next(iterator)
                if not arguments.transship:  # the second one
                    batch = to_device(batch, device)
            waited += time.perf_counter() - asked
            with record_function("step"):
                optimizer.zero_grad(set_to_none=True)
                loss = model(batch)
                loss.backward()
                optimizer.step()
                losses.append(loss.detach())
        finish(device)
        return (time.perf_counter() - begin) / count, waited / count

    iterator = iter(batches)
    steps(iterator, WARM_UP)
    took, waited = steps(iterator, arguments.steps)
    with tracing:
        steps(iterator, PROFILED)
    # Workers end before what they share goes.
    del iterator, batches, source
    if arguments.ring:
        print(f"ring: {ring.stats()}")
    assert all(bool(torch.isfinite(loss)) for loss in losses)
    return took, waited, tracing


def finish(device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def of_kernels(events):
    """The milliseconds of a step in which a kernel ran; ``None`` without a GPU."""
    kernels = sorted((event["ts"], event["ts"] + event["dur"]) for event in events if event.get("cat") == "kernel")
    if not kernels:
        return None
    busy, end = 0.0, kernels[0][0]
    for start, stop in kernels:
        busy += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return busy / 1e3 / PROFILED


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transship", action="store_true")
    parser.add_argument("--ring", action="store_true", help="--transship, and workers write to memory that the GPU copies from")
    parser.add_argument("--device", default="cuda:0" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=200, help="that are timed")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--size", type=int, default=512, help="of the images, in pixels")
    parser.add_argument("--width", type=int, default=64, help="of the model; it sets how long a step takes")
    parser.add_argument("--tensors", action="store_true", help="workers make tensors of all arrays")
    parser.add_argument("--trace", type=pathlib.Path)
    arguments = parser.parse_args()
    arguments.transship |= arguments.ring
    took, waited, tracing = train(arguments)
    with tempfile.TemporaryDirectory() as folder:
        file = arguments.trace or pathlib.Path(folder, "trace.json")
        tracing.export_chrome_trace(str(file))
        kernels = of_kernels(json.loads(file.read_text())["traceEvents"])
    name = "transship, ring" if arguments.ring else "transship" if arguments.transship else ".to()"
    said = "" if kernels is None else f"; kernels run for {kernels:.2f} ms of it, and none for {1 - kernels / (took * 1e3):.1%} of the time"
    print(f"{name}: {took * 1e3:.2f} ms a step, of that {waited * 1e3:.2f} ms until the next batch was there{said}")


if __name__ == "__main__":
    main()
