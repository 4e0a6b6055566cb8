"""``transship.LoaderRing``: batches of PyTorch's workers. Those on a device run on real ones, and on the stand-in for libcuda."""

import collections
import contextlib
import copy
import gc
import multiprocessing
import os
import pickle
import signal
import sys
import time
import traceback

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

import transship
from transship import _ring_collate, _slot_batch

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="it is there on Linux only"),
    pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning", "ignore:This DataLoader will create:UserWarning"),
]



@pytest.fixture(scope="module")
def device():
    """Of one driver, such as "hip", if the environment names one; ``None`` if there is none."""
    found = [device for device in transship.devices() if device.startswith(os.environ.get("TRANSSHIP_TEST_DRIVER", ""))]
    return found[0] if found else None


Pair = collections.namedtuple("Pair", "first second")


class Samples(Dataset):
    """Sample ``i`` has bytes that follow from ``i``."""

    def __init__(self, count=32, act=None, size=500):
        self.count, self.act, self.size = count, act, size

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if self.act is not None:
            self.act(index)
        return {"index": index, "name": f"sample {index}", "image": torch.full((self.size,), float(index)), "pair": Pair(torch.tensor([index, 1]), np.uint8(index % 7))}


def loader(ring, samples=None, collate_fn=None, **options):
    options = {"batch_size": 4, "num_workers": 2, **options}
    return DataLoader(samples or Samples(), collate_fn=ring.collate(collate_fn), **options)


def check(batch):
    indices = batch["index"].tolist()
    assert batch["name"] == [f"sample {index}" for index in indices]
    assert batch["image"].dtype == torch.float32
    for position, index in enumerate(indices):
        assert batch["image"][position].unique().tolist() == [float(index)]
    assert type(batch["pair"]) is Pair
    assert batch["pair"].first.tolist() == [[index, 1] for index in indices]
    assert batch["pair"].second.tolist() == [index % 7 for index in indices]
    return indices


def indices_of(batches):
    return [index for batch in batches for index in check(batch)]


def assert_all_free(ring):
    gc.collect()
    transship.start_copy([], "cpu").get()
    stats = ring.stats()
    assert stats["slots"] and stats["free_slots"] == stats["slots"]


@pytest.fixture
def ring():
    return transship.LoaderRing(1 << 20)


def with_threads(samples):
    return {**torch.utils.data.default_collate(samples), "threads": len(os.listdir("/proc/self/task"))}


@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
def test_workers_however_they_are_started(method, device):
    ring = transship.LoaderRing(1 << 20, device=device)
    batches = ring.batches(loader(ring, collate_fn=with_threads, num_workers=1, multiprocessing_context=method))
    assert len(batches) == 8
    seen, threads = [], []
    for batch in batches:
        seen += check(batch)
        threads.append(batch["threads"])
    del batch
    assert seen == list(range(32))
    # None of ours. Behind its first batch PyTorch has one that sends, and some where it is started.
    assert method != "fork" or threads[0] == 1
    stats = ring.stats()
    assert (stats["batches"], stats["batches_beside"], stats["tensors_beside"], stats["page_locked"]) == (8, 0, 0, bool(device))
    assert 4 * 2000 <= stats["largest_batch_bytes"] < 4 * 2000 + 500
    assert_all_free(ring)


@pytest.mark.parametrize("options", [{"pin_memory": True}, {"shuffle": True}, {"batch_size": None}, {"persistent_workers": True}, {"num_workers": 0}])
def test_batches_are_those_of_the_loader_alone(ring, options):
    def batches(through, collate_fn):
        generator = torch.Generator().manual_seed(5)
        made = DataLoader(Samples(16), collate_fn=collate_fn, **{"batch_size": 4, "num_workers": 2, "generator": generator, **options})
        return [batch["index"] if options.get("batch_size", 4) is None else check(batch) for epoch in range(2) for batch in through(made)]

    plain = torch.utils.data.default_convert if "batch_size" in options else None
    assert batches(ring.batches, ring.collate(plain)) == batches(iter, plain)


class Attributes:
    def __init__(self, tensor):
        self.tensor = tensor


def anything(samples):
    """A batch of whatever PyTorch sends between processes."""
    index = samples[0]["index"]
    values = torch.arange(index, index + 24, dtype=torch.float64)
    twice = values.to(torch.bfloat16)
    batch = [
        values.reshape(2, 3, 4).permute(2, 0, 1),
        torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(index)).to(memory_format=torch.channels_last),
        values[::3],
        values[:1].expand(5),
        torch.empty(0, 3),
        values.to(torch.complex128),
        values > index + 3,
        values.to(torch.float8_e4m3fn),
        torch.tensor(index),
        twice,
        twice,
        Attributes(values + 1),
        values.numpy() * 2,
        values.to_sparse(),
        torch.nn.Parameter(values),
        torch.complex(values, values).conj(),
        "text",
        None,
    ]
    batch.append({"itself": len(batch), ("a", 1): {3.5, index}})
    return batch


def test_whatever_a_batch_holds(ring):
    options = {"batch_size": 2, "collate_fn": anything}
    plain = list(DataLoader(Samples(6), num_workers=1, **options))
    through = list(ring.batches(loader(ring, Samples(6), num_workers=1, **options)))
    assert len(plain) == len(through) == 3
    for batch, expected in zip(through, plain):
        assert len(batch) == len(expected)
        for leaf, other in zip(batch, expected):
            if isinstance(leaf, Attributes):
                leaf, other = leaf.tensor, other.tensor
            assert type(leaf) is type(other)
            if isinstance(leaf, np.ndarray):
                np.testing.assert_array_equal(leaf, other)
            elif isinstance(leaf, torch.Tensor):
                assert (leaf.dtype, leaf.shape, leaf.layout, leaf.requires_grad) == (other.dtype, other.shape, other.layout, other.requires_grad)
                leaf, other = [t.to_dense().detach().resolve_conj() for t in (leaf, other)]
                assert torch.equal(leaf.to(torch.complex128), other.to(torch.complex128))
            else:
                assert leaf == other
        assert batch[1].is_contiguous(memory_format=torch.channels_last)
        assert batch[9] is batch[10]
    # The sparse and the conjugated one, and the parameter.
    stats = ring.stats()
    assert (stats["batches"], stats["batches_beside"]) == (3, 0)
    assert stats["tensors_beside"] == 3 * 3


# Deliberate bug: `SlotLease` in `ipc/src/slots.rs` gives its slot back at once; `memory_of` in `_slot_batch.py` keeps no `keeper`.
def test_what_is_kept_is_not_written_again():
    ring = transship.LoaderRing(1 << 16, slots=3)
    with pytest.warns(RuntimeWarning, match="none of the 3 slots free.*slots=6"):
        kept = [batch["image"] for batch in ring.batches(loader(ring, persistent_workers=True))]
    stats = ring.stats()
    assert stats["batches"] == 3 and stats["batches_beside"] == 5 and stats["free_slots"] == 0
    assert torch.cat(kept)[:, 7].tolist() == [float(index) for index in range(32)]
    del kept
    assert_all_free(ring)


# Deliberate bug: `reserve` in `python/src/slot_batch.rs` gives room to a tensor for which there is none.
def test_tensors_that_do_not_fit_go_beside():
    ring = transship.LoaderRing(4096)
    with pytest.warns(RuntimeWarning, match=r"a batch of \d+ bytes for slots of 4096") as warned:
        assert indices_of(ring.batches(loader(ring))) == list(range(32))
    # Python warns of forks as well, where the process has threads.
    assert [warning.category for warning in warned].count(RuntimeWarning) == 1
    stats = ring.stats()
    # What it says is enough.
    enough = transship.LoaderRing(stats["largest_batch_bytes"])
    assert indices_of(enough.batches(loader(enough))) == list(range(32))
    assert enough.stats()["tensors_beside"] == 0
    assert (stats["batches"], stats["tensors_beside"]) == (8, 8)
    assert stats["largest_batch_bytes"] > 8000
    assert_all_free(ring)


# Deliberate bug: `Batches.__iter__` is a generator, `for batch in source: yield batch`.
def test_a_batch_is_not_kept_while_the_next_one_is_made(ring):
    batches = iter(ring.batches(loader(ring, num_workers=1, prefetch_factor=1)))
    next(batches)
    next(batches)
    time.sleep(0.3)
    # One that the worker has made since.
    assert ring.stats()["free_slots"] >= ring.stats()["slots"] - 1


# Deliberate bug: `take_back` is not called, or `Lap.has_ended` says so at once.
def open_files():
    """What each descriptor of the process is of."""
    names = set()
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            names.add(os.readlink(f"/proc/self/fd/{descriptor}"))
    return names


# Deliberate bug: `started` in `_lap.py` keeps the pipe of an iteration that has started no workers.
def test_epochs_of_workers_that_persist_keep_no_descriptors(ring):
    images = loader(ring, persistent_workers=True)
    kept = []
    for _ in range(4):
        assert len(indices_of(ring.batches(images))) == len(images.dataset)
        gc.collect()
        kept.append(open_files())
    # Those of other tests may still be closed by their threads.
    assert not set.union(*kept[1:]) - kept[0]


@pytest.mark.parametrize("persistent", [False, True])
def test_an_epoch_that_is_left_early(ring, persistent):
    batches = ring.batches(loader(ring, persistent_workers=persistent))
    for _ in range(3):
        for number, batch in enumerate(batches):
            check(batch)
            if number == 1:
                break
        del batch
        if not persistent:
            assert_all_free(ring)
    assert indices_of(batches) == list(range(32))
    del batches
    assert_all_free(ring)
    assert ring.stats()["batches_beside"] == 0


def fails_at(index):
    if index == 21:
        raise LookupError("sample 21 is missing")


def dies_at(index):
    if index == 21:
        os.kill(os.getpid(), signal.SIGKILL)


def test_errors_are_those_of_the_dataset(ring):
    batches = ring.batches(loader(ring, Samples(act=fails_at)))
    seen = []
    with pytest.raises(LookupError, match="sample 21 is missing") as raised:
        for batch in batches:
            seen += check(batch)
    assert seen == list(range(20))
    # PyTorch's own frames keep the error, its loader and themselves.
    traceback.clear_frames(raised.tb)
    del batch, raised
    assert_all_free(ring)


def fails_to_collate(samples):
    batch = torch.utils.data.default_collate(samples)
    if 21 in batch["index"].tolist():
        raise LookupError("no batch of 21")
    return batch


# Deliberate bug: `_fill` in `_loader_ring.py` keeps a slot that nothing was written to.
def test_errors_of_collate_keep_no_slot():
    ring = transship.LoaderRing(1 << 20, slots=8)
    batches = iter(ring.batches(loader(ring, collate_fn=fails_to_collate, persistent_workers=True)))
    for _ in range(5):
        check(next(batches))
    with pytest.raises(LookupError, match="no batch of 21"):
        next(batches)
    assert [check(batch)[0] for batch in batches] == [24, 28]
    assert ring.stats()["free_slots"] == 8


def dies_while_it_collates(samples):
    if samples[0]["index"] == 20:
        os.kill(os.getpid(), signal.SIGKILL)
    return torch.utils.data.default_collate(samples)


# Deliberate bug: `take_back` in `ipc/src/slot_memory.rs` frees nothing.
@pytest.mark.parametrize("act, collate_fn", [(dies_at, None), (None, dies_while_it_collates)])
def test_a_worker_that_is_killed(ring, act, collate_fn):
    batches = ring.batches(loader(ring, Samples(act=act), collate_fn))
    with pytest.raises(RuntimeError, match="killed by signal|exited unexpectedly") as raised:
        indices_of(batches)
    traceback.clear_frames(raised.tb)
    del raised
    assert_all_free(ring)
    assert indices_of(ring.batches(loader(ring))) == list(range(32))
    assert_all_free(ring)


def test_two_loaders_at_once():
    for rings in [[transship.LoaderRing(1 << 20), transship.LoaderRing(1 << 20)], [transship.LoaderRing(1 << 20, slots=20)] * 2]:
        pairs = zip(rings[0].batches(loader(rings[0])), rings[1].batches(loader(rings[1], shuffle=True)))
        seen = [(check(first), check(second)) for first, second in pairs]
        assert sum((first for first, _ in seen), []) == list(range(32))
        assert sorted(sum((second for _, second in seen), [])) == list(range(32))
        # It keeps the last pair.
        del pairs
        for ring in rings:
            assert ring.stats()["batches_beside"] == 0
            assert_all_free(ring)


class Stream(IterableDataset):
    def __iter__(self):
        worker = get_worker_info()
        return (Samples()[index] for index in range(worker.id, 30, worker.num_workers))


def test_iterable_datasets(ring):
    assert sorted(indices_of(ring.batches(loader(ring, Stream())))) == list(range(30))
    assert_all_free(ring)


def test_a_loader_without_the_ring_s_batches(ring):
    assert indices_of(loader(ring)) == list(range(32))
    assert ring.stats()["slots"] == 0
    assert indices_of(ring.batches(loader(ring))) == list(range(32))
    assert indices_of(loader(ring)) == list(range(32))
    assert ring.stats()["batches"] == 8


# Deliberate bug: `SlotLease` in `ipc/src/slots.rs` does not look at which process it is.
def test_a_forked_child_gives_nothing_back(ring):
    kept = list(ring.batches(loader(ring, Samples(8))))
    free = ring.stats()["free_slots"]
    child = os.fork()
    if child == 0:
        kept.clear()
        gc.collect()
        os._exit(0)
    os.waitpid(child, 0)
    assert ring.stats()["free_slots"] == free == ring.stats()["slots"] - 2
    assert indices_of(kept) == list(range(8))


def test_the_ring_may_go_before_its_batches():
    ring = transship.LoaderRing(1 << 20)
    kept = list(ring.batches(loader(ring, Samples(8))))
    del ring
    gc.collect()
    assert indices_of(kept) == list(range(8))


def empty_and_copied(ring, samples):
    whole = ring.empty((4, 500), torch.float32)
    torch.stack([sample["image"] for sample in samples], out=whole)
    return whole[1:3], whole.data_ptr(), samples[0]["image"]


class ByHand:
    def __init__(self, ring):
        self.ring = ring

    def __call__(self, samples):
        return empty_and_copied(self.ring, samples)


def test_a_collate_fn_that_writes_to_the_slot(ring):
    for number, (part, _, first) in enumerate(ring.batches(loader(ring, collate_fn=ByHand(ring)))):
        assert part[:, 3].tolist() == [4 * number + 1, 4 * number + 2] and first[3] == 4 * number
    assert not ring.empty([3, 2], torch.int32).is_shared()
    # The slot has the whole and the first sample, and not the part once more.
    assert 8000 + 2000 <= ring.stats()["largest_batch_bytes"] <= 8000 + 2000 + 4000 + 128


def test_batches_that_come_too_late(ring):
    list(ring.batches(loader(ring, Samples(4), num_workers=1)))
    with pytest.raises(transship.Error, match="come twice"):
        _ring_collate._take_in(ring._key, 0, 1 << 40, b"", b"", 0, 0, True)
    with pytest.raises(transship.Error, match="does not have it"):
        _ring_collate._take_in("none", 0, 1 << 40, b"", b"", 0, 0, True)


def test_a_loader_that_is_not_the_ring_s(ring):
    plain = DataLoader(Samples(), num_workers=1)
    with pytest.raises(ValueError, match="collate_fn=ring.collate()"):
        iter(ring.batches(plain))
    with pytest.raises(ValueError, match="another LoaderRing"):
        iter(ring.batches(loader(transship.LoaderRing(1 << 10))))


def test_a_loader_without_a_batch_size(ring):
    batches = list(ring.batches(loader(ring, batch_size=None)))
    assert [batch["index"] for batch in batches] == list(range(32))
    assert batches[3]["image"].shape == (500,) and batches[3]["name"] == "sample 3"
    assert ring.stats()["batches"] + ring.stats()["batches_beside"] == 32


def with_a_function(samples):
    return {"function": lambda: None}


def test_what_cannot_be_pickled(ring):
    with pytest.raises((AttributeError, pickle.PicklingError), match="pickle"):
        next(iter(ring.batches(loader(ring, collate_fn=with_a_function, num_workers=1))))


def test_what_it_does_not_take(ring):
    with pytest.raises(ValueError, match="slots=0"):
        transship.LoaderRing(10, slots=0)
    with pytest.raises(ValueError, match="slot_bytes=-1"):
        transship.LoaderRing(-1)
    with pytest.raises(TypeError, match="LoaderRing is pickled"):
        copy.deepcopy(ring)
    with pytest.raises(transship.Error):
        huge = transship.LoaderRing(1 << 60)
        list(huge.batches(loader(huge)))


def test_ahead_and_with_a_cast(ring):
    batches = transship.prefetch(ring.batches(loader(ring)), "cpu", copy=True, cast={torch.float32: torch.float64})
    assert len(batches) == 8
    seen = []
    for batch in batches:
        assert batch["image"].dtype == torch.float64
        seen += check({**batch, "image": batch["image"].float()})
    assert seen == list(range(32))
    del batch
    assert_all_free(ring)


def leaves_of(samples):
    """33 arrays and tensors of a sample, in the containers that the library knows by itself."""
    leaves = []
    for sample in samples:
        index = sample["index"]
        small = [np.full((index % 5 + number, 3), index, np.float32) for number in range(10)]
        odd = [torch.full((number,), index, dtype=torch.uint8) for number in range(10)]
        turned = torch.arange(12).reshape(3, 4).T + index
        leaves.append({"index": index, "name": sample["name"], "small": small, "odd": tuple(odd), "pair": (turned, np.array(index)), "empty": np.empty((0, 2))})
    return {"leaves": leaves, "image": torch.full((100_000,), float(samples[0]["index"])), "none": None}


# Deliberate bug: `join` in `python/src/pieces.rs` takes what lies elsewhere in its chunk.
@pytest.mark.parametrize("for_copies", [True, False])
def test_arrays_to_a_device(device, for_copies, monkeypatch):
    if device is None:
        pytest.skip("there is no device, and no stand-in for one")
    ring = transship.LoaderRing(1 << 20)
    batches = ring.batches(loader(ring, Samples(64), leaves_of))
    if for_copies:
        monkeypatch.setattr(_slot_batch, "read", None)
    else:
        batches = list(batches)
    seen = []
    for batch in transship.prefetch(batches, device, like="dlpack", memory="transship"):
        back = transship.start_copy(batch, "cpu", like="numpy").get()
        assert back["none"] is None and np.unique(back["image"]).tolist() == [back["leaves"][0]["index"]]
        for leaf in back["leaves"]:
            index = leaf["index"]
            assert leaf["name"] == f"sample {index}" and leaf["empty"].shape == (0, 2)
            for number, (small, odd) in enumerate(zip(leaf["small"], leaf["odd"], strict=True)):
                np.testing.assert_array_equal(small, np.full((index % 5 + number, 3), index, np.float32))
                np.testing.assert_array_equal(odd, np.full(number, index, np.uint8))
            assert type(leaf["pair"]) is tuple and leaf["pair"][1] == index
            np.testing.assert_array_equal(leaf["pair"][0], np.arange(12).reshape(3, 4).T + index)
            seen.append(index)
    assert seen == list(range(64))
    stats = ring.stats()
    assert (stats["batches"], stats["batches_beside"], stats["tensors_beside"]) == (16, 0, 0) or not for_copies
    assert stats["page_locked"] is for_copies
    del batch, batches
    assert_all_free(ring)


class LooksAtItsTensors:
    def __init__(self, tensor):
        self.tensor = tensor

    def __setstate__(self, state):
        self.__dict__.update(state, total=float(state["tensor"].sum()))


def with_an_object(samples):
    image = torch.stack([sample["image"] for sample in samples])
    return {"image": image, "object": LooksAtItsTensors(image[:2])}


# Deliberate bug: `reduce` in `python/src/slot_batch.rs` says of every batch that it is plain.
def test_an_object_that_looks_at_its_tensors_to_a_device(device):
    if device is None:
        pytest.skip("there is no device, and no stand-in for one")
    ring = transship.LoaderRing(1 << 20)
    batches = ring.batches(loader(ring, Samples(8), with_an_object, num_workers=1))
    for number, batch in enumerate(transship.prefetch(batches, device, like="dlpack", memory="transship")):
        assert batch["image"].device == device
        assert batch["object"].total == 500 * (8 * number + 1) and batch["object"].tensor[1, 3] == 4 * number + 1
    assert ring.stats()["batches"] == 2


def test_a_cast_to_a_device(device):
    if device is None:
        pytest.skip("there is no device, and no stand-in for one")
    ring, shown = transship.LoaderRing(1 << 20), []

    def halve(path, leaf):
        shown.append(type(leaf))
        return torch.float16 if path[0] == "image" else None

    for cast in ({"float32": "float16"}, halve):
        seen = []
        for batch in transship.prefetch(ring.batches(loader(ring)), device, like="dlpack", memory="transship", cast=cast):
            assert batch["image"].dtype == "float16"
            back = transship.start_copy(batch, "cpu", like="numpy").get()
            seen += check({**back, "image": torch.from_numpy(back["image"]).float()})
        assert seen == list(range(32))
    assert set(shown) == {torch.Tensor}


def test_to_a_device(device):
    if device is None:
        pytest.skip("there is no device, and no stand-in for one")
    ring = transship.LoaderRing(4 << 20, device=device)
    images = loader(ring, Samples(size=100_000), persistent_workers=True)
    for _ in range(2):
        seen = []
        for batch in transship.prefetch(ring.batches(images), device, like="dlpack", memory="transship"):
            assert batch["image"].device == device
            # As arrays: PyTorch itself has nothing to do with a stand-in.
            back = transship.start_copy(batch, "cpu", like="numpy").get()
            seen += check({**back, "image": torch.from_numpy(back["image"])})
        assert seen == list(range(32))
    stats = ring.stats()
    assert (stats["batches"], stats["batches_beside"]) == (16, 0)
    assert stats["page_locked"]
    del batch
    assert_all_free(ring)
