"""Copies a batch of 528 small tensors to the best device there is, and says what that took beside one call for each tensor."""

import statistics
import time

import torch

import transship
from transship.multi_tensor_copier import start_copy


def batch():
    """Twelve samples of 44 tensors, as a detector for several cameras has them."""
    return [{f"field_{field}": torch.randn(1 + (sample * field) % 140) for field in range(44)} for sample in range(12)]


def one_by_one(data, device):
    return [{name: tensor.to(device, copy=True) for name, tensor in sample.items()} for sample in data]


def median_us(work, device):
    times = []
    for _ in range(50):
        begin = time.perf_counter()
        result = work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append((time.perf_counter() - begin) * 1e6)
        del result
    return statistics.median(times)


def main():
    data = batch()
    print(f"transship {transship.backend_info()}")
    if not torch.cuda.is_available():
        print("No GPU: on the host, what is there already is given back as it is.")
        assert start_copy(data, "cpu").get()[0]["field_0"] is data[0]["field_0"]
        return
    device = torch.device("cuda:0")
    copied = start_copy(data, device).get()
    assert all(torch.equal(copied[i][name].cpu(), data[i][name]) for i in range(len(data)) for name in data[i])
    print(f"one by one: {median_us(lambda: one_by_one(data, device), device):8.0f} us")
    print(f"start_copy: {median_us(lambda: start_copy(data, device).get(), device):8.0f} us")


if __name__ == "__main__":
    main()
