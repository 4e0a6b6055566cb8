"""What the parts of a copy of 528 small tensors take at least, by a program in C++, beside what the package takes.

    python python/benches/floors.py [--rounds N] [--processor N]

Needs a compiler of C++ and Python's headers. All times are medians in microseconds. In turns each part comes behind a `.to()` of all tensors, at once it
comes behind itself. Where there is no GPU all of it is done on the host. The program in C++ reads tensors without gaps in dicts and lists, keeps nothing alive, allocates nothing and handles no error: what it
needs is a floor. Processors of virtual machines may differ by a factor of two: `--processor` says which one the thread runs on.
"""

import argparse
import gc
import importlib.util
import os
import statistics
import subprocess
import sysconfig
import tempfile
import time
from pathlib import Path

import torch
from table import by_to, copier, headline, synchronize, tensors_of
from torch.utils.cpp_extension import include_paths

HERE = Path(__file__).resolve().parent


def compiled(folder):
    library = f"{folder}/floors.so"
    torch_libraries = Path(torch.__file__).parent / "lib"
    headers = [*include_paths(), sysconfig.get_paths()["include"]]
    command = [os.environ.get("CXX", "c++"), "-O3", "-std=c++20", "-fPIC", "-shared", "-DTORCH_EXTENSION_NAME=floors", *(f"-I{path}" for path in headers)]
    libraries = [f"-L{torch_libraries}", "-lc10", "-ltorch_cpu", "-ltorch", "-ltorch_python"]
    subprocess.run([*command, HERE / "floors.cpp", *libraries, "-o", library], check=True)
    spec = importlib.util.spec_from_file_location("floors", library)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Parts:
    """Each takes its own time, and gives it by name."""

    def __init__(self, floors, device):
        self.floors, self.device, self.data = floors, device, headline()
        self.floors.read(self.data)
        size = sum(leaf.nbytes + 16 for leaf in tensors_of(self.data))
        on_gpu = device != "cpu"
        self.staging = torch.empty(size, dtype=torch.uint8, pin_memory=on_gpu)
        self.block = torch.empty(size, dtype=torch.uint8, device=device)
        self.start = copier(on_gpu)

    def all(self):
        return self.read, self.stage, self.copy, self.build, self.ours

    def read(self):
        yield "read", self.floors.read(self.data)

    def stage(self):
        yield "stage", self.floors.stage(self.staging)

    def copy(self):
        begin = time.perf_counter()
        self.block.copy_(self.staging, non_blocking=True)
        synchronize()
        yield "copy", since(begin)

    def build(self):
        took, made = self.floors.build(self.data, self.block)
        del made
        yield "build", took

    def ours(self):
        begin = time.perf_counter()
        handle = self.start(self.data, self.device)
        returned = since(begin)
        result = handle.get()
        yield "until done", since(begin)
        yield "until it returns", returned
        yield from ((f"its {name}", took) for name, took in handle.phases().items())
        del result


def since(begin):
    return (time.perf_counter() - begin) * 1e6


def in_turns(parts, rounds):
    """Behind `.to()` each."""
    times = {}
    for _ in range(rounds):
        for part in parts.all():
            by_to(parts.data, parts.device)
            note(times, part)
    return times


def at_once(parts, rounds):
    """Behind the same part."""
    times = {}
    for part in parts.all():
        for _ in range(rounds):
            note(times, part)
    return times


def note(times, part):
    synchronize()
    for name, took in part():
        times.setdefault(name, []).append(took)


def show(title, times):
    took = {name: statistics.median(values[len(values) // 10 :]) for name, values in times.items()}
    floor = sum(took[name] for name in ("read", "stage", "copy", "build"))
    figures = ", ".join(f"{name} {value:.0f}" for name, value in took.items())
    print(f"{title}: {figures}; the floor is {floor:.0f}, until done {took['until done'] / floor:.2f} times that", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--processor", type=int, help="that this thread runs on")
    arguments = parser.parse_args()
    if arguments.processor is not None:
        os.sched_setaffinity(0, {arguments.processor})
    device = "cuda:0" if torch.cuda.is_available() else "cpu"
    gc.disable()
    with tempfile.TemporaryDirectory() as folder:
        parts = Parts(compiled(folder), device)
        show("in turns", in_turns(parts, arguments.rounds))
        show("at once", at_once(parts, arguments.rounds))


if __name__ == "__main__":
    main()
