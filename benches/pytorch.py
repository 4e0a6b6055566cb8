"""The rows of transship-bench with PyTorch, in the same order and sizes, as JSON of the same form.

usage: python3 benches/pytorch.py [--quick] [--only PART_OF_A_NAME]

Each tensor is copied with `.to()` or `.cpu()`, until the device is done. Warm-up apart; every series is verified on fresh
random data. Prints why, and fails, where there is no PyTorch or no CUDA device.
"""

import json
import sys
import time

SCENES = [
    (60, [30, 20, 40, 10, 50, 20]),
    (100, [60, 40, 30, 70, 20, 50]),
    (45, [10, 20, 10, 30, 20, 10]),
    (120, [80, 50, 60, 40, 70, 30]),
]
SAMPLES = 16
SECONDS = 2.0
LEAST_ROUNDS = 3
MOST_ROUNDS = 500
QUICK_DIVISOR = 64

try:
    import torch
except ImportError:
    torch = None


def main():
    if torch is None:
        sys.exit("PyTorch is not installed: nothing was measured")
    if not torch.cuda.is_available():
        sys.exit("PyTorch sees no CUDA device: nothing was measured")
    quick = "--quick" in sys.argv[1:]
    only = sys.argv[sys.argv.index("--only") + 1] if "--only" in sys.argv else ""
    rows = [row(*arguments, quick) for arguments in works(quick) if only in arguments[0]]
    about = [("PyTorch", torch.__version__), ("device", torch.cuda.get_device_name()), ("sizes", "quick" if quick else "full")]
    print(json.dumps({"about": [{"name": name, "value": value} for name, value in about], "rows": rows}, indent=2))


def works(quick):
    """Name, what makes an input out of a seed, and ways: names, and what each does with the prepared input."""
    up = [(".to() for each", same, lambda tensors: [tensor.to("cuda:0") for tensor in tensors])]
    pinned = (
        ".to(non_blocking) for each, already pinned",
        lambda tensors: [tensor.pin_memory() for tensor in tensors],
        lambda tensors: [tensor.to("cuda:0", non_blocking=True) for tensor in tensors],
    )
    down = [(".cpu() for each", to_first, lambda tensors: [tensor.cpu() for tensor in tensors])]
    yield "up-headline", headline, [*up, pinned]
    for name, count, size in [
        ("up-2000x64KiB", 2000, 64 << 10),
        ("up-10000x4KiB", 10_000, 4 << 10),
        ("up-100000x256B", 100_000, 256),
        ("up-300x1MiB", 300, 1 << 20),
        ("up-1x1GiB", 1, 1 << 30),
    ]:
        yield name, many(count, size, quick), up
    narrowed = (".to(torch.bfloat16) for each", same, lambda tensors: [tensor.to("cuda:0", torch.bfloat16) for tensor in tensors])
    first_on_host = (
        ".to(torch.bfloat16).to() for each",
        same,
        lambda tensors: [tensor.to(torch.bfloat16).to("cuda:0") for tensor in tensors],
    )
    yield "up-cast-1x1GiB", floats((1 << 28) // (QUICK_DIVISOR if quick else 1)), [narrowed, first_on_host]
    yield "up-strided-large", every_other_row(1, 409_600 // (QUICK_DIVISOR if quick else 1), 256), up
    yield "up-strided-small", every_other_row(500, 128, 64), up
    yield "down-headline", headline, down
    yield "down-1x1GiB-ordinary", many(1, 1 << 30, quick), down
    for name, views, rows, step, width in [("down-strided-large", 8, 262_144, 32, 16), ("down-strided-small", 10, 16_384, 24, 4)]:
        cpu = (".contiguous().cpu() for each", views_to_first, lambda views: [view.contiguous().cpu() for view in views])
        yield name, columns(views, rows // (QUICK_DIVISOR if quick else 1), step, width), [cpu]
    if torch.cuda.device_count() > 1:
        between = [(".to() for each", to_first, lambda tensors: [tensor.to("cuda:1") for tensor in tensors])]
        broadcast = ("broadcast_coalesced, from a GPU", to_first, broadcast_to_both)
        yield "devices-headline", headline, between
        yield "devices-broadcast", headline, [broadcast]
        across = (".contiguous().to() for each", views_to_first, lambda views: [view.contiguous().to("cuda:1") for view in views])
        yield "devices-strided-large", columns(8, 262_144 // (QUICK_DIVISOR if quick else 1), 32, 16), [across]


def same(tensors):
    return tensors


def to_first(tensors):
    return [tensor.to("cuda:0") for tensor in tensors]


def views_to_first(views):
    """Views of one tensor, which stay views."""
    base = views[0]._base.to("cuda:0")
    return [base.as_strided(view.size(), view.stride(), view.storage_offset()) for view in views]


def broadcast_to_both(tensors):
    return torch.cuda.comm.broadcast_coalesced(tensors, [0, 1])[1]


def row(name, make, ways, quick):
    tensors = make(1)
    lines = [line(way, prepare(tensors), copy, quick) for way, prepare, copy in ways]
    for way, prepare, copy in ways:
        verify(way, make(2), prepare, copy)
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    return {"name": name, "leaves": len(tensors), "bytes": size, "lines": lines}


def line(way, tensors, copy, quick):
    seconds = SECONDS / 20 if quick else SECONDS
    timed(copy, tensors, seconds / 8)
    times = sorted(timed(copy, tensors, seconds))
    quantile = lambda part: times[round((len(times) - 1) * part)] * 1e6
    return {
        "kind": "rival",
        "way": f"PyTorch: {way}",
        "median_us": quantile(0.5),
        "p10_us": quantile(0.1),
        "p99_us": quantile(0.99),
        "samples": len(times),
    }


def timed(copy, tensors, seconds):
    """Times of so many copies as fit; the result of the one before is let go of first, untimed."""
    times, copied, end = [], None, time.perf_counter() + seconds
    while len(times) < LEAST_ROUNDS or (time.perf_counter() < end and len(times) < MOST_ROUNDS):
        del copied
        synchronize()
        started = time.perf_counter()
        copied = copy(tensors)
        synchronize()
        times.append(time.perf_counter() - started)
    return times


def verify(way, tensors, prepare, copy):
    copied = copy(prepare(tensors))
    synchronize()
    if not all(torch.equal(tensor.to(there.dtype), there.cpu()) for tensor, there in zip(tensors, copied, strict=True)):
        sys.exit(f"{way} has copied something else than it was given")


def synchronize():
    for device in range(torch.cuda.device_count()):
        torch.cuda.synchronize(device)


def floats(count):
    def make(seed):
        torch.manual_seed(seed)
        return [torch.randn(count)]

    return make


def headline(seed):
    torch.manual_seed(seed)
    tensors = []
    for index in range(SAMPLES):
        objects, visible = SCENES[index % len(SCENES)]
        for count in visible:
            tensors += [
                torch.rand(count, 4),
                torch.randint(0, 10, (count,)),
                torch.rand(count) < 0.5,
                torch.rand(count),
                torch.rand(3, 4),
            ]
        tensors += [torch.rand(objects, 7), torch.randint(0, 10, (objects,)), torch.rand(objects) < 0.5]
    assert len(tensors) == 528
    assert sum(tensor.numel() * tensor.element_size() for tensor in tensors) == 153_628
    return tensors


def many(count, size, quick):
    """The sizes of a quick run are those of transship-bench."""
    if quick:
        size = max(size // QUICK_DIVISOR, 1 << 16) if size >= 1 << 20 else size
        count = min(count, max(count // QUICK_DIVISOR, min(max((1 << 20) // size, 1), 1000)))

    def make(seed):
        torch.manual_seed(seed)
        return [torch.randint(0, 256, (size,), dtype=torch.uint8) for _ in range(count)]

    return make


def every_other_row(count, rows, columns):
    def make(seed):
        torch.manual_seed(seed)
        return [torch.rand(rows, columns)[::2] for _ in range(count)]

    return make


def columns(views, rows, step, width):
    def make(seed):
        torch.manual_seed(seed)
        base = torch.randint(0, 256, (rows, 256), dtype=torch.uint8)
        return [base[:, step * view : step * view + width] for view in range(views)]

    return make


if __name__ == "__main__":
    main()
