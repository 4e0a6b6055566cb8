"""What lies in the slots of a ``transship.LoaderRing``, and how it is described."""

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
                assert (array.dtype.newbyteorder("="), array.shape) == (other.dtype, other.shape) and array.flags.writeable
                np.testing.assert_array_equal(array, other)
                assert name != "taken" or array.size == 0 or _transship_has(array)
        assert batch["taken"][0].flags.f_contiguous and batch["taken"][3].flags.c_contiguous
        assert type(batch["scalar"]) is np.float32 and batch["scalar"] == expected["scalar"]
        assert batch["twice"][0] is batch["twice"][1]
    stats = ring.stats()
    # A masked array is of a class of its own, whose data is pickled as bytes.
    assert (stats["batches"], stats["batches_beside"], stats["tensors_beside"]) == (3, 0, 3 * 5)
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
    batch = _slot_batch.read_for_copies(written, lease)
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
