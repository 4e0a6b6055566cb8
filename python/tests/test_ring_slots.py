"""What lies in the slots of a ``transship.LoaderRing``, and how it is described."""

import collections
import datetime
import gc
import os
import sys

import numpy as np
import pytest
import torch
from test_loader_ring import Samples, assert_all_free, loader
from torch.utils.data import DataLoader

import transship
from transship import _slot_batch, _transship

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it is there on Linux only")


@pytest.fixture
def ring():
    return transship.LoaderRing(1 << 20)


class InOneProcess:
    """A slot, written and read here."""

    def __init__(self, size=1 << 16):
        self.slots = _transship.Slots(size, 1)
        self.filler = _transship.SlotFiller(self.slots.fileno(), self.slots.slot_bytes, self.slots.slots)
        self.claimed = self.filler.claim(7)
        self.writer = _slot_batch.SlotWriter(self.claimed.address, self.slots.slot_bytes, self.filler)

    def lease(self):
        return self.slots.lease(*self.claimed.hand_over())

    def read(self, written):
        return _slot_batch.read(written, self.lease(), self.slots.slot_bytes)


def test_what_is_there_is_not_copied_and_comes_once():
    slot = InOneProcess()
    assert slot.filler.claim(7) is None
    there = slot.writer.empty((3,), torch.int64)
    there.copy_(torch.arange(3))
    written = slot.writer.write([there, torch.ones(2)])
    # Flags, type, rank, size and offset of each, in bytes.
    assert [written.leaves[index] for index in (4, 9)] == [0, 32]
    handed_over = slot.claimed.hand_over()
    assert slot.claimed.hand_over() is None and slot.claimed.address is None
    lease = slot.slots.lease(*handed_over)
    assert slot.slots.lease(*handed_over) is None and slot.slots.take_back(7) == 0
    batch = _slot_batch.read(written, lease, slot.slots.slot_bytes)
    del lease
    assert batch[0].tolist() == [0, 1, 2] and slot.slots.free() == 0
    del batch
    assert slot.slots.free() == 1


# Deliberate bug: `ClaimedSlot` in `ipc/src/filler.rs` does not look at which process it is.
def test_a_child_of_a_worker_gives_no_slot_back():
    """One that a collate function forks, and that ends as any other: the batch that is being written would be written over."""
    slot = InOneProcess()
    child = os.fork()
    if child == 0:
        slot.claimed.give_up()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert slot.slots.free() == 0 and slot.filler.claim(8) is None
    assert slot.lease() is not None


def of_numpy(samples):
    """Arrays that slots take, and such as they do not."""
    index = samples[0]["index"]
    values = np.arange(index, index + 24, dtype=np.float64)
    matrix = values.reshape(4, 6)
    misaligned = np.frombuffer(bytes(1) + values.tobytes(), np.uint8)[1:].view(np.float64)
    taken = [np.asfortranarray(matrix), matrix.T, matrix[::2, 1::2], matrix[:, ::-1], misaligned, np.broadcast_to(values[:1], (3,)), np.array(index), np.empty((0, 3))]
    taken += [(values > 3), *(values.astype(name) for name in ("float16", "float32", "int8", "int16", "uint16", "uint32", "uint64", "complex64"))]
    left = [values.astype(">f4"), np.array(["a", "bcd"]), np.array([{}, index]), values.view([("a", "f8")]), values.astype("datetime64[s]"), np.ma.masked_array(values, values > 5)]
    return {"taken": taken, "left": left, "scalar": np.float32(index), "twice": [values, values]}


# Deliberate bug: `array` in `python/src/slot_batch.rs` places what has gaps as if it had none.
def test_arrays(ring):
    options = {"batch_size": 2, "collate_fn": of_numpy, "num_workers": 1}
    plain = list(DataLoader(Samples(6), **options))
    through = list(ring.batches(loader(ring, Samples(6), **options)))
    assert len(plain) == len(through) == 3
    for batch, expected in zip(through, plain):
        for name in ("taken", "left", "twice"):
            for array, other in zip(batch[name], expected[name], strict=True):
                assert type(array) is type(other)
                # PyTorch's protocol of pickle gives arrays the order of bytes of the machine.
                assert (array.dtype.newbyteorder("="), array.shape) == (other.dtype.newbyteorder("="), other.shape) and array.flags.writeable
                np.testing.assert_array_equal(array, other)
                assert name != "taken" or array.size == 0 or _transship_has(array)
        assert batch["taken"][0].flags.f_contiguous and batch["taken"][3].flags.c_contiguous
        assert type(batch["scalar"]) is np.float32 and batch["scalar"] == expected["scalar"]
        assert batch["twice"][0] is batch["twice"][1]
    stats = ring.stats()
    assert (stats["batches"], stats["batches_beside"], stats["tensors_beside"]) == (3, 0, 3 * 6)
    del through, batch, array
    assert_all_free(ring)


def _transship_has(array):
    """Whether it lies in a slot."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return hasattr(array.base, "keeper")


# Deliberate bug: `parts` in `python/src/slot_batch.rs` lets every leaf through.
def test_descriptions_are_checked():
    slot = InOneProcess(1 << 12)
    written = slot.writer.write([torch.zeros(1000), np.zeros(3)])
    lease, size = slot.lease(), slot.slots.slot_bytes
    memory = _slot_batch.memory_of(lease.address, size, lease)
    whole = _slot_batch.tensor_over(memory)
    assert len(lease.leaves(written.leaves, whole, memory)) == len(lease.for_copies(written.leaves)) == 2
    flags, float32, rank = 0, 0, 1
    for spoilt in [
        # Too long, behind the end, at an address that is none, of a type that is none, more dimensions than there are bytes, and cut off.
        [flags, float32, rank, 0xFF, 0x7F, 0],
        [flags, float32, rank, 1, 0x80, 0x20],
        [flags, float32, rank, 1, 2],
        [flags, 99, rank, 1, 0],
        [flags, float32, 0xFF, 0xFF, 0x7F, 1, 0],
        [flags, float32, rank],
        # Strides that lead out of the slot, and sizes that no memory has.
        [2, float32, rank, 2, 0xFF, 0x7F, 0],
        [flags, float32, 2, *[0xFF] * 8, 0x7F, *[0xFF] * 8, 0x7F, 0],
    ]:
        for read in (lease.for_copies, lambda described: lease.leaves(described, whole, memory)):
            with pytest.raises(RuntimeError, match="not in its slot"):
                read(bytes(spoilt))
    random = np.random.default_rng(3)
    for _ in range(3000):
        spoilt = bytearray(written.leaves)
        for at in random.integers(0, len(spoilt), 3):
            spoilt[at] = random.integers(0, 256)
        try:
            for leaf in lease.leaves(bytes(spoilt), whole, memory):
                leaf.sum()
        except (RuntimeError, TypeError):
            # numpy does not have all types.
            pass


# Deliberate bug: `for_copies` in `python/src/slot_batch.rs` keeps no lease.
def test_a_leaf_for_copies_keeps_its_slot():
    slot = InOneProcess()
    written = slot.writer.write({"tensor": torch.arange(3), "array": np.ones((2, 3)), "more": [torch.ones(70_000 // 4)]})
    # Too large for the slot: it is in the pickle.
    assert written.beside == 1 and written.needed > slot.slots.slot_bytes
    lease = slot.lease()
    batch = _slot_batch.read_for_copies(written, lease, slot.slots.slot_bytes)
    del lease
    assert slot.slots.free() == 0
    copied = transship.start_copy(batch, "cpu", copy=True, like="torch").get()
    assert copied["tensor"].tolist() == [0, 1, 2] and copied["array"].tolist() == [[1.0] * 3] * 2
    assert copied["more"][0].sum() == 70_000 // 4
    del batch["tensor"]
    assert slot.slots.free() == 0
    del batch
    transship.start_copy([], "cpu").get()
    assert slot.slots.free() == 1
    assert copied["tensor"].tolist() == [0, 1, 2]


# Deliberate bug: `take` in `python/src/ours.rs` takes every class of what went through for one whose objects all do.
def test_leaves_behind_a_capsule_of_others():
    slot = InOneProcess()
    written = slot.writer.write([torch.arange(3), torch.ones(2)])
    others = datetime.datetime_CAPI
    tree = [others, *slot.lease().for_copies(written.leaves), others]
    first, *copied, last = transship.start_copy(tree, "cpu", copy=True, like="torch").get()
    assert first is others and last is others
    assert [leaf.tolist() for leaf in copied] == [[0, 1, 2], [1, 1]]
    first, *copied, last = transship.start_copy(tree, "cpu", copy=True).get()
    assert first is others and last is others
    assert [leaf.tolist() for leaf in copied] == [[0, 1, 2], [1, 1]]


Looking = collections.namedtuple("Looking", "image label")


class Looks(Looking):
    """It looks at what it is made of."""

    def __new__(cls, image, label):
        assert image.ndim == 1
        return super().__new__(cls, image, label)


def looping(batch):
    batch.append(batch)
    return batch


# Deliberate bugs: `are_found` in `python/src/slot_batch.rs` looks at no key, at no set, or says yes where it is too deep; `reduce` there lets classes through.
@pytest.mark.parametrize(
    "batch",
    [
        {"seen": {torch.ones(3)}},
        [frozenset([torch.ones(3)])],
        {torch.ones(3): 1},
        {(torch.ones(3), 1): 1},
        Looks(torch.ones(3), 1),
        [Looking(torch.ones(3), 1)],
        collections.OrderedDict(a=torch.ones(3)),
        looping([torch.ones(3)]),
    ],
    ids=lambda batch: type(batch).__name__,
)
def test_nobody_but_a_copy_sees_leaves_for_copies(batch):
    slot = InOneProcess()
    written = slot.writer.write(batch)
    through = _slot_batch.read_for_copies(written, slot.lease(), slot.slots.slot_bytes)
    seen = []
    below(through, seen, set())
    assert [leaf.tolist() for leaf in seen] == [[1.0] * 3]


def test_what_holds_nothing_but_leaves_has_them_for_copies():
    slot = InOneProcess()
    written = slot.writer.write({"a": [torch.ones(3), (np.ones(2), None)], 1: 2.5, "text": b"bytes", "on": True})
    batch = _slot_batch.read_for_copies(written, slot.lease(), slot.slots.slot_bytes)
    assert "PyCapsule" in type(batch["a"][0]).__name__ and "PyCapsule" in type(batch["a"][1][0]).__name__


def below(found, seen, known):
    if isinstance(found, torch.Tensor):
        seen.append(found)
    elif isinstance(found, (list, tuple, set, frozenset, dict)) and id(found) not in known:
        known.add(id(found))
        for item in [*found.keys(), *found.values()] if isinstance(found, dict) else found:
            below(item, seen, known)
    else:
        assert found is None or isinstance(found, (int, float, str)) or id(found) in known


# Deliberate bug: `empty` gives a view of the whole slot.
def test_what_a_tensor_in_the_slot_grows_by_is_not_in_the_slot():
    slot = InOneProcess()
    with pytest.raises(RuntimeError, match="resiz"):
        slot.writer.empty((2,), torch.float32).resize_(100)
    assert slot.writer.empty((0,), torch.float32) is None
    for dtype in (torch.bool, torch.bfloat16, torch.complex64, torch.float8_e5m2, torch.int16):
        assert slot.writer.empty((2, 3), dtype).shape == (2, 3)


# Deliberate bug: `offset_of` of `SlotPacker` in `python/src/slot_batch.rs` takes the whole slot.
def test_what_lies_behind_what_was_reserved_is_copied():
    slot = InOneProcess()
    whole = _slot_batch.tensor_over(slot.writer._memory)
    behind = whole[:4000].view(torch.float32)
    behind.copy_(torch.arange(1000.0))
    # Across its own place as well.
    written = slot.writer.write([behind, torch.ones(500)])
    first, second = slot.read(written)
    assert first.tolist() == list(range(1000)) and second.tolist() == [1.0] * 500


def test_leaves_that_lie_otherwise_than_their_elements_ask_for():
    slot = InOneProcess()
    floats = slot.writer.empty((9,), torch.float64)
    floats.copy_(torch.arange(9.0))
    pairs = floats.numpy()[1:].view(np.complex128)
    misaligned = torch.from_numpy(np.frombuffer(bytes(1) + floats.numpy().tobytes(), np.uint8)[1:].view(np.float64))
    written = slot.writer.write([pairs, misaligned[::2], misaligned, pairs[::2]])
    batch = slot.read(written)
    assert batch[0].tolist() == [1 + 2j, 3 + 4j, 5 + 6j, 7 + 8j] and batch[3].tolist() == [1 + 2j, 5 + 6j]
    assert batch[1].tolist() == [0.0, 2.0, 4.0, 6.0, 8.0] and batch[2].tolist() == list(range(9))
    assert written.beside == 0


def test_room_is_counted_once_and_where_it_was_taken():
    slot = InOneProcess(1 << 12)
    whole = slot.writer.empty((4, 200), torch.float32)
    written = slot.writer.write([whole, *whole])
    assert (written.needed, written.beside) == (3200, 0)
    slot = InOneProcess(1 << 12)
    scratch = slot.writer.empty((800,), torch.float32)
    written = slot.writer.write([scratch[:100], torch.ones(1000)])
    assert (written.needed, written.beside) == (7200, 1)


def test_arrays_of_their_own_class_are_counted(tmp_path):
    np.save(tmp_path / "array.npy", np.arange(6.0))
    slot = InOneProcess()
    written = slot.writer.write([np.load(tmp_path / "array.npy", mmap_mode="r")])
    assert written.beside == 1 and slot.read(written)[0].tolist() == list(range(6))


def test_elements_of_fewer_bits_than_8_stay_what_they_are():
    slot = InOneProcess()
    narrow = torch.arange(4, dtype=torch.uint8).view(torch.int4)
    written = slot.writer.write([narrow, torch.ones(2)])
    read = slot.read(written)
    assert written.beside == 1 and read[0].dtype == torch.int4 and read[1].tolist() == [1, 1]


def test_the_collector_of_garbage_is_as_it_was():
    for is_on in (True, False):
        (gc.enable if is_on else gc.disable)()
        try:
            for like in (None, "numpy"):
                transship.start_copy([torch.ones(3)] * 2, "cpu", copy=True, like=like).get()
                assert gc.isenabled() == is_on
        finally:
            gc.enable()
