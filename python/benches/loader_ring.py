"""Batches of a ``DataLoader``'s workers to a GPU: by ``LoaderRing``, and by PyTorch's own ``pin_memory``, in turns.

    python python/benches/loader_ring.py [--device cuda:0] [--mb 50] [--batches 100] [--workers 4] [--rounds 3] [--step MS]

A batch is one image tensor of ``uint8`` and its labels. Workers copy samples that are there already into it, so that they are as fast as their
memory: what is measured is the way from them to the GPU. Printed are the median time of a batch, from one to the next, what the trainer's
thread waited for a batch, the processor time of the trainer's process for each, and of its own thread.
"""

import argparse
import statistics
import time

import torch
from torch.utils.data import DataLoader, Dataset

import transship

SAMPLES = 16
# Of an epoch, in which workers start.
WARM = 8


class Images(Dataset):
    """The same bytes behind all samples, but for the first one of each, which is its number."""

    def __init__(self, batches, sample_bytes):
        self.batches = batches
        self.image = torch.arange(sample_bytes, dtype=torch.int32).to(torch.uint8)

    def __len__(self):
        return self.batches * SAMPLES

    def __getitem__(self, index):
        return self.image, index


def pinned(dataset, arguments):
    """What programs do without transship."""
    loader = DataLoader(dataset, batch_size=SAMPLES, num_workers=arguments.workers, pin_memory=arguments.has_gpu)
    for batch in loader:
        yield [tensor.to(arguments.device, non_blocking=True) for tensor in batch]


def pageable(dataset, arguments):
    loader = DataLoader(dataset, batch_size=SAMPLES, num_workers=arguments.workers)
    for batch in loader:
        yield [tensor.to(arguments.device) for tensor in batch]


def prefetched(dataset, arguments):
    loader = DataLoader(dataset, batch_size=SAMPLES, num_workers=arguments.workers)
    yield from transship.prefetch(loader, arguments.device)


def ring(dataset, arguments):
    slots = transship.LoaderRing((arguments.mb + 1) * 1_000_000, device=arguments.device if arguments.has_gpu else None)
    loader = DataLoader(dataset, batch_size=SAMPLES, num_workers=arguments.workers, collate_fn=slots.collate())
    yield from transship.prefetch(slots.batches(loader), arguments.device)
    stats = slots.stats()
    assert stats["batches_beside"] == 0 and stats["batches"] == arguments.batches, stats


WAYS = {"no pin_memory, .to()": pageable, "pin_memory, .to(non_blocking=True)": pinned, "prefetch": prefetched, "LoaderRing and prefetch": ring}


def synchronize(arguments):
    if arguments.has_gpu:
        torch.cuda.synchronize(arguments.device)


def measure(way, arguments):
    """Milliseconds of each batch: from the one before, waited for, of the process, of the thread; and whether all came right."""
    dataset = Images(arguments.batches, arguments.mb * 1_000_000 // SAMPLES)
    rows, seen = [], 0
    batches = way(dataset, arguments)
    while True:
        begin, process, thread = time.perf_counter(), time.process_time(), time.thread_time()
        batch = next(batches, None)
        if batch is None:
            break
        waited = time.perf_counter() - begin
        images, labels = batch
        # As a step does: kernels that read the batch, and a host that may run one step ahead.
        total = images.view(-1)[::4099].sum(dtype=torch.int64) + labels.sum()
        if arguments.step:
            time.sleep(arguments.step / 1e3)
        total = int(total)
        rows.append([time.perf_counter() - begin, waited, time.process_time() - process, time.thread_time() - thread])
        expected = sum(range(seen, seen + SAMPLES)) + arguments.total
        assert total == expected, f"batch {seen // SAMPLES} has arrived with other bytes: {total} for {expected}"
        seen += SAMPLES
        del batch, images, labels
    synchronize(arguments)
    assert seen == len(dataset), f"{seen} samples for {len(dataset)}"
    return [[value * 1e3 for value in row] for row in rows[WARM:]]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--mb", type=int, default=50, help="a batch, in millions of bytes")
    parser.add_argument("--batches", type=int, default=100, help="of an epoch")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--step", type=float, default=0, help="what a step takes beside the batch, in milliseconds")
    arguments = parser.parse_args()
    arguments.has_gpu = arguments.device.startswith("cuda")
    if arguments.batches <= WARM:
        parser.error(f"--batches: more than {WARM}, which are not counted")
    sample = Images(1, arguments.mb * 1_000_000 // SAMPLES).image
    arguments.total = int(sample.repeat(SAMPLES)[::4099].sum(dtype=torch.int64))
    name = torch.cuda.get_device_name(arguments.device) if arguments.has_gpu else "the host"
    print(f"{name}; {arguments.workers} workers, {arguments.mb} MB a batch, means of {arguments.rounds} x {arguments.batches - WARM}")
    print(f"{'ms a batch':36} {'in all':>9} {'GB/s':>7} {'waited':>9} {'process':>9} {'thread':>9}")
    rows = {title: [] for title in WAYS}
    for _ in range(arguments.rounds):
        for title, way in WAYS.items():
            rows[title] += measure(way, arguments)
    for title, measured in rows.items():
        # Batches come in lumps, and so does processor time: means, not medians.
        whole, waited, process, thread = (statistics.mean(row[at] for row in measured) for at in range(4))
        print(f"{title:36} {whole:9.2f} {arguments.mb / whole:7.2f} {waited:9.2f} {process:9.2f} {thread:9.2f}", flush=True)


if __name__ == "__main__":
    main()
