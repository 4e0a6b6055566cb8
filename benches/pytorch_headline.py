"""The batch of benches/headline with PyTorch: `.to("cuda")` for each tensor, until the device is done.

usage: python3 benches/pytorch_headline.py [ITERATIONS]
"""

import statistics
import sys
import time

SCENES = [
    (60, [30, 20, 40, 10, 50, 20]),
    (100, [60, 40, 30, 70, 20, 50]),
    (45, [10, 20, 10, 30, 20, 10]),
    (120, [80, 50, 60, 40, 70, 30]),
]
SAMPLES = 16
WARM_UP = 20


def batch(torch):
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


def median_us(torch, tensors, iterations, non_blocking):
    times = []
    for round in range(WARM_UP + iterations):
        torch.cuda.synchronize()
        started = time.perf_counter()
        copied = [tensor.to("cuda", non_blocking=non_blocking) for tensor in tensors]
        torch.cuda.synchronize()
        if round >= WARM_UP:
            times.append((time.perf_counter() - started) * 1e6)
    assert all(torch.equal(tensor, copy.cpu()) for tensor, copy in zip(tensors, copied))
    return statistics.median(times)


def main():
    iterations = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    try:
        import torch
    except ImportError:
        sys.exit("PyTorch is not installed: nothing was measured")
    if not torch.cuda.is_available():
        sys.exit("PyTorch sees no CUDA device: nothing was measured")
    torch.manual_seed(0)
    tensors = batch(torch)
    pinned = [tensor.pin_memory() for tensor in tensors]
    print(f"PyTorch {torch.__version__}, {torch.cuda.get_device_name()}, median of {iterations}, us")
    print(f".to() for each tensor                              {median_us(torch, tensors, iterations, False):10.1f}")
    print(f".to() for each tensor, pinned source, non_blocking {median_us(torch, pinned, iterations, True):10.1f}")


if __name__ == "__main__":
    main()
