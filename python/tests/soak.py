"""Copies of random trees, with exceptions, cancels and threads, for some time: no memory grows.

    python python/tests/soak.py [--seconds 180] [--device cuda:0] [--threads 4] [--seed 1]

What a thread does next is random: copies up, down, to all devices, into what is held, casts, results that are awaited, given up, cancelled
or dropped in flight, trees whose leaves or containers raise. Every result is compared with what it should be. Ten times a round ends: all
threads wait, garbage is collected, and it is looked how many objects and blocks of memory Python has, and how much the process,
PyTorch and this library have.
"""

import argparse
import asyncio
import collections
import ctypes
import gc
import os
import pathlib
import random
import sys
import threading
import time

import torch

import transship
from transship import _transship
from trees import assert_copied, assert_same, bytes_of, random_tree

ROUNDS = 10
# The first ones fill caches.
WARM = 4
# A process of several threads does not always give the same pages back.
MOST_GROWTH = 0.05


class Broken(Exception):
    pass


class BrokenLeaf:
    """Says that it is a tensor, and raises when it is read."""

    def __dlpack_device__(self):
        return (1, 0)

    def __dlpack__(self, **_):
        raise Broken


class Box:
    def __init__(self, held):
        self.held = held


def opened(box):
    if box.held is None:
        raise Broken
    return [box.held], None


def made(context, held):
    return Box(held[0])


class Soak:
    def __init__(self, rng, device):
        self.rng, self.device, self.counts = rng, device, collections.Counter()
        self.steps = [self.up_and_down, self.broken, self.cancelled, self.dropped, self.awaited, self.to_all, self.into, self.cast, self.own]

    def step(self):
        step = self.rng.choice(self.steps)
        step()
        self.counts[step.__name__] += 1

    def tree(self):
        return [random_tree(self.rng, depth=3) for _ in range(3)]

    def start(self, tree, **options):
        return transship.start_copy(tree, self.device, copy=True, max_chunk_bytes=self.rng.choice([100, 1 << 20]), **options)

    def up_and_down(self):
        tree = self.tree()
        up = self.start(tree).get()
        assert_copied(transship.start_copy(up, "cpu", copy=True).get(), tree)

    def own(self):
        tree = self.tree()
        results = self.start(tree, like="dlpack").get()
        assert_copied(transship.start_copy(results, "cpu", like="torch", copy=True).get(), tree)

    def broken(self):
        tree = [*self.tree(), self.rng.choice([BrokenLeaf(), Box(None)]), *self.tree()]
        try:
            self.rng.choice([self.start, lambda tree: transship.start_copy_to_all(tree, [self.device] * 2, copy=True)])(tree)
        except Broken:
            return
        raise AssertionError("no exception")

    def cancelled(self):
        handle = self.start([*self.tree(), Box(torch.ones(self.rng.choice([3, 1 << 16])))])
        if handle.cancel():
            try:
                handle.get()
            except transship.Error as error:
                assert error.kind == "Cancelled"
                return
            raise AssertionError("a result of a cancelled copy")
        handle.get()

    def dropped(self):
        for handle in [self.start(self.tree()) for _ in range(3)]:
            try:
                handle.get(timeout=self.rng.choice([0, 1e-5]))
            except TimeoutError:
                pass

    def awaited(self):
        async def main():
            handles = [self.start(self.tree()) for _ in range(3)]
            tasks = [asyncio.ensure_future(_awaited(handle)) for handle in handles]
            await asyncio.sleep(0)
            tasks[0].cancel()
            return await asyncio.gather(*tasks, return_exceptions=True)

        for result in asyncio.run(main()):
            assert isinstance(result, (list, asyncio.CancelledError))

    def to_all(self):
        tree = self.tree()
        handles = transship.start_copy_to_all(tree, [self.device, "cpu"], copy=True)
        self.rng.shuffle(handles)
        handles.pop() if self.rng.random() < 0.3 else None
        for handle in handles:
            assert_copied(transship.start_copy(handle.get(), "cpu").get(), tree)

    def into(self):
        tensors = [torch.randn(self.rng.randrange(1, 2000)) for _ in range(self.rng.randrange(1, 30))]
        held = self.start([torch.zeros_like(tensor) for tensor in tensors]).get()
        for _ in range(3):
            transship.start_copy_into(tensors, held).get()
        for result, tensor in zip(held, tensors):
            assert_same(result, tensor)

    def cast(self):
        tensors = [torch.randn(self.rng.randrange(1, 2000)) for _ in range(self.rng.randrange(1, 30))]
        to = [self.rng.choice([torch.float16, torch.bfloat16, torch.float64, None]) for _ in tensors]
        results = self.start(tensors, cast=lambda path, leaf: to[path[0]]).get()
        for result, tensor, dtype in zip(results, tensors, to):
            assert result.dtype == (dtype or torch.float32) and bytes_of(result) == bytes_of(tensor.to(dtype or torch.float32))


async def _awaited(handle):
    return await handle


def one_round(soaks, seconds):
    until, failures = time.monotonic() + seconds, []

    def work(soak):
        try:
            while time.monotonic() < until and not failures:
                soak.step()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(soak,)) for soak in soaks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def looked_at(device):
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    for _ in range(3):
        transship.start_copy([], "cpu").get()
        gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        # What is free goes back to the system: glibc has kept it for each thread.
        trim(0)
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    seen = {"objects": len(gc.get_objects()), "blocks": sys.getallocatedblocks(), "resident": pages * os.sysconf("SC_PAGE_SIZE")}
    seen["PyTorch"] = torch.cuda.memory_allocated() if device.startswith("cuda") else 0
    return {**seen, **_transship.held()}


def check(seen):
    """The last rounds against the first ones that were warm."""
    warm, last = seen[WARM : WARM + 2], seen[-2:]
    for name in last[-1]:
        before, after = max(one.get(name, 0) for one in warm), min(one.get(name, 0) for one in last)
        allowed = {"objects": before + 20, "blocks": before + 300, "resident": before * (1 + MOST_GROWTH) + (16 << 20)}.get(name, before)
        assert after <= allowed, f"{name} has grown from {before} to {after}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=180)
    parser.add_argument("--device", default="cuda:0" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    transship.register_container(Box, opened, made)
    soaks = [Soak(random.Random(arguments.seed * 100 + number), arguments.device) for number in range(arguments.threads)]
    seen = []
    for number in range(ROUNDS):
        one_round(soaks, arguments.seconds / ROUNDS)
        seen.append(looked_at(arguments.device))
        print(f"round {number + 1}:", ", ".join(f"{name} {value:,}" for name, value in seen[-1].items()), flush=True)
    check(seen)
    counts = sum((soak.counts for soak in soaks), collections.Counter())
    assert len(counts) == len(soaks[0].steps), f"only {sorted(counts)} were tried"
    print(f"{sum(counts.values()):,} steps in {arguments.seconds:.0f} s on {arguments.device}: nothing has grown ({dict(sorted(counts.items()))})")


if __name__ == "__main__":
    main()
