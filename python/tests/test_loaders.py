"""``transship.prefetch`` and ``transship.load_safetensors``, on the host."""

import gc
import json
import struct
import sys
import weakref

import numpy as np
import pytest
import torch

import transship
from trees import assert_same


class Source:
    """Batches of a loader, and how many were asked for."""

    def __init__(self, count, fails_at=None):
        self.count, self.fails_at, self.asked = count, fails_at, 0

    def __len__(self):
        return self.count

    def __iter__(self):
        for index in range(self.count):
            self.asked += 1
            if index == self.fails_at:
                raise ValueError(f"batch {index}")
            yield {"index": index, "tensor": torch.full((3,), float(index))}


def prefetch(source, **options):
    return transship.prefetch(source, "cpu", copy=True, **options)


@pytest.mark.parametrize("depth", [1, 2, 5, 100])
def test_batches_keep_their_order(depth):
    batches = list(prefetch(Source(20), depth=depth))
    assert [batch["index"] for batch in batches] == list(range(20))
    assert all(batch["tensor"].tolist() == [float(index)] * 3 for index, batch in enumerate(batches))


# Deliberate bug: `__iter__` starts the next copy behind `yield`.
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_so_many_are_ahead_of_the_caller(depth):
    source = Source(10)
    batches = iter(prefetch(source, depth=depth))
    for taken in range(1, 5):
        next(batches)
        assert source.asked == taken + depth


def test_the_length_is_passed_on():
    assert len(prefetch(Source(7))) == 7
    with pytest.raises(TypeError):
        len(prefetch(iter([1])))


def test_it_can_be_iterated_over_again():
    batches = prefetch(Source(4))
    assert len(list(batches)) == 4 and len(list(batches)) == 4
    assert batches.stats()["batches"] == 8
    assert all(value >= 0 for value in batches.stats().values())


def test_an_exception_of_the_loader_comes_in_its_place():
    batches, seen = iter(prefetch(Source(10, fails_at=4), depth=3)), []
    with pytest.raises(ValueError, match="batch 4"):
        for batch in batches:
            seen.append(batch["index"])
    assert seen == [0, 1, 2, 3]
    assert list(batches) == []


def test_an_exception_of_a_copy_comes_in_its_place():
    source = [torch.ones(1), np.array([object()]), torch.ones(1)]
    batches = iter(prefetch(source))
    assert next(batches).tolist() == [1]
    with pytest.raises(TypeError):
        next(batches)


# Deliberate bug: `_hand_over` in `_prefetch.py` keeps `first`; `__iter__` does.
def test_an_exception_of_the_loader_keeps_nothing():
    class Loader:
        def __init__(self):
            self.left = 2

        def __iter__(self):
            return self

        def __next__(self):
            self.left -= 1
            if self.left < 0:
                raise ValueError("ended")
            return torch.ones(3)

    loader = Loader()
    gone = weakref.ref(loader)
    gc.collect()
    gc.disable()
    try:
        with pytest.raises(ValueError, match="ended") as raised:
            for _ in transship.prefetch(loader, "cpu", copy=True):
                pass
        del loader, raised
        assert gone() is None
    finally:
        gc.enable()


def test_nothing_is_kept_after_a_break():
    gone = []
    for index, batch in enumerate(prefetch(Source(10))):
        gone.append(weakref.ref(batch["tensor"]))
        if index == 3:
            break
    del batch
    gc.collect()
    transship.start_copy([], "cpu").get()
    assert [one() for one in gone] == [None] * 4


def test_a_batch_is_not_kept_while_the_next_one_is_made():
    batches = iter(prefetch(Source(10)))
    first = weakref.ref(next(batches)["tensor"])
    next(batches)
    assert first() is None


def test_depths_that_are_none():
    with pytest.raises(ValueError):
        transship.prefetch([], "cpu", depth=0)


class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        return {"index": torch.tensor(index), "image": torch.full((3, 8, 8), float(index))}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_of_pytorch(workers):
    loader = torch.utils.data.DataLoader(Samples(), batch_size=4, num_workers=workers)
    batches = list(prefetch(loader))
    assert len(loader) == len(batches) == 6
    assert torch.cat([batch["index"] for batch in batches]).tolist() == list(range(24))
    assert batches[5]["image"][3].unique().tolist() == [23.0]


@pytest.fixture
def weights(tmp_path):
    tensors = {
        "layer.weight": torch.randn(3, 4),
        "layer.bias": torch.randn(3).to(torch.bfloat16),
        "steps": torch.arange(5),
        "small": torch.randn(7).to(torch.float8_e4m3fn),
        "scales": torch.arange(100, 105, dtype=torch.uint8).view(torch.float8_e8m0fnu),
        "empty": torch.empty(0, 2),
    }
    names = {torch.float32: "F32", torch.bfloat16: "BF16", torch.int64: "I64", torch.float8_e4m3fn: "F8_E4M3", torch.float8_e8m0fnu: "F8_E8M0"}
    header, data = {}, b""
    for name, tensor in tensors.items():
        content = bytes(tensor.contiguous().view(torch.uint8).numpy()) if tensor.numel() else b""
        header[name] = {"dtype": names[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path, tensors


def test_a_shape_that_python_has_no_room_for_is_an_error(tmp_path):
    text = json.dumps({"a": {"dtype": "F32", "shape": [0, 2**63], "data_offsets": [0, 0]}}).encode()
    path = tmp_path / "huge.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text)
    with pytest.raises(transship.Error, match="dimension of 2\\^63"):
        transship.load_safetensors(path, "cpu")


def test_files(weights):
    path, tensors = weights
    loaded = transship.load_safetensors(path, "cpu")
    assert set(loaded) == set(tensors)
    for name, tensor in tensors.items():
        assert_same(loaded[name], tensor)


def test_some_tensors_of_several_files_as_arrays(weights):
    path, tensors = weights
    loaded = transship.load_safetensors([str(path)], torch.device("cpu"), like="numpy", names=["steps", "layer.weight"])
    assert set(loaded) == {"steps", "layer.weight"}
    np.testing.assert_array_equal(loaded["layer.weight"], tensors["layer.weight"].numpy())


# Deliberate bug: `load_safetensors` in `lib.rs` passes the error of `convert` on as it is.
def test_a_tensor_that_cannot_be_what_is_asked_for_is_named(weights, monkeypatch):
    path, tensors = weights
    # Where it is, numpy has these types.
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    monkeypatch.setattr("transship._copy._installed_ml_dtypes", lambda: None)
    half = next(name for name, tensor in tensors.items() if tensor.dtype == torch.bfloat16)
    with pytest.raises(TypeError, match="bfloat16") as raised:
        transship.load_safetensors(path, "cpu", like="numpy", names=[half])
    said = str(raised.value) + "".join(getattr(raised.value, "__notes__", []))
    assert said.endswith(f'the tensor "{half}" of the files')


# Deliberate bug: `load_safetensors` in `_files.py` returns what there is of the names; it takes a `str` for a list of them.
def test_names_that_are_none(weights):
    path, _ = weights
    with pytest.raises(ValueError, match="'stepz', 'wieght'"):
        transship.load_safetensors(path, "cpu", names=["wieght", "steps", "stepz"])
    with pytest.raises(TypeError, match="names='steps'"):
        transship.load_safetensors(path, "cpu", names="steps")
    assert list(transship.load_safetensors(bytes(path), "cpu", names={"steps"})) == ["steps"]
    assert transship.load_safetensors(path, "cpu", names=[]) == {}


def test_files_that_are_none(tmp_path):
    (tmp_path / "none.safetensors").write_bytes(b"none")
    for name in ("none.safetensors", "missing.safetensors"):
        with pytest.raises(transship.Error, match=name):
            transship.load_safetensors(tmp_path / name, "cpu")


def test_batches_are_cast_on_the_way():
    batches = [{"image": torch.full((2, 3), index, dtype=torch.uint8), "index": index} for index in range(5)]
    for index, batch in enumerate(transship.prefetch(batches, "cpu", cast={torch.uint8: torch.float16})):
        assert batch["image"].dtype == torch.float16 and float(batch["image"][0, 0]) == index == batch["index"]
