"""What a batch of 528 small arrays and 8 images costs the host on its way out of a ``DataLoader``: no GPU is needed.

    python python/benches/loader_leaves.py [--batches 200] [--workers 2] [--size 512] [--rounds 3] [--only NAME] [--profile]

The batches are those of ``python/examples/train.py``. Printed for each way are the processor time of the trainer's own thread for a batch, of its process,
and of the workers, with what it takes to make the batch, and the time from one batch to the next. ``--profile`` shows where the thread's time goes.
"""

import argparse
import cProfile
import pathlib
import pstats
import resource
import statistics
import sys
import time

import torch
from torch.utils.data import DataLoader

import transship

sys.path.append(str(pathlib.Path(__file__).parents[1] / "examples"))
from train import Frames, as_it_is  # noqa: E402

# Of an epoch, in which workers start.
WARM = 16


def loader(arguments, collate_fn):
    return DataLoader(Frames(arguments.size), batch_size=None, num_workers=arguments.workers, prefetch_factor=4, collate_fn=collate_fn)


def arrays(arguments):
    return loader(arguments, as_it_is)


def tensors(arguments):
    return loader(arguments, None)


def ring(arguments):
    slots = transship.LoaderRing(16 << 20)
    return slots.batches(loader(arguments, slots.collate(as_it_is)))


def ahead(arguments):
    """What ``prefetch`` takes of a ring, and copies."""
    return ring(arguments).ahead()


WAYS = {"arrays": arrays, "tensors": tensors, "ring": ring, "ring, as prefetch takes it": ahead}


def of_workers():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(way, arguments, profiler):
    """Milliseconds of a batch: of the thread, of the process, of the workers, and from the one before."""
    torch.set_num_threads(1)
    before = of_workers()
    iterator = iter(way(arguments))
    rows = []
    for number in range(WARM + arguments.batches):
        begin, process, thread = time.perf_counter(), time.process_time(), time.thread_time()
        if profiler and number >= WARM:
            profiler.enable()
        batch = next(iterator)
        del batch
        if profiler:
            profiler.disable()
        if number >= WARM:
            rows.append([time.thread_time() - thread, time.process_time() - process, time.perf_counter() - begin])
    del iterator
    thread, process, whole = (statistics.mean(column) * 1e3 for column in zip(*rows))
    return [thread, process, (of_workers() - before) / (WARM + arguments.batches) * 1e3, whole]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=200, help="of an epoch")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--size", type=int, default=512, help="of the images, in pixels")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=WAYS)
    parser.add_argument("--profile", action="store_true")
    arguments = parser.parse_args()
    ways = {name: way for name, way in WAYS.items() if arguments.only in (None, name)}
    profilers = {name: cProfile.Profile() if arguments.profile else None for name in ways}
    rows = {name: [] for name in ways}
    for _ in range(arguments.rounds):
        for name, way in ways.items():
            rows[name].append(measure(way, arguments, profilers[name]))
    print(f"{'ms a batch':28} {'thread':>8} {'process':>8} {'workers':>8} {'in all':>8}")
    for name, measured in rows.items():
        print(f"{name:28} " + " ".join(f"{statistics.median(column):8.3f}" for column in zip(*measured)), flush=True)
        if profilers[name]:
            pstats.Stats(profilers[name]).sort_stats("tottime").print_stats(14)


if __name__ == "__main__":
    main()
