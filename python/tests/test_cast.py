"""``cast=``: which elements become which, from the host to the host."""

import random
import sys
import time

import numpy as np
import pytest
import torch

import transship
from transship import Cast
from trees import assert_same, seeds


def copied(tree, cast, **options):
    return transship.start_copy(tree, "cpu", cast=cast, **options).get()


TREE = {"weights": [torch.randn(4, 3), torch.randn(5).double()], "ids": (np.arange(4), "text"), "flag": torch.tensor([True, False])}


# Deliberate bug: `_types_for` in `_cast.py` gives all types.
@pytest.mark.parametrize("cast", [torch.bfloat16, "bfloat16", Cast(torch.bfloat16)])
def test_a_type_is_for_those_of_its_kind(cast):
    result = copied(TREE, cast, like="torch")
    assert_same(result["weights"][0], TREE["weights"][0].bfloat16())
    assert result["weights"][1].dtype == torch.bfloat16
    assert result["ids"][0].tolist() == [0, 1, 2, 3] and result["ids"][0].dtype == torch.int64
    assert result["flag"] is TREE["flag"] and result["ids"][1] == "text"


# Deliberate bug: `settled` in `calls.rs` keeps what is there and cast.
def test_what_stays_as_it_is_goes_through_unless_all_is_copied():
    tensors = [torch.ones(3), torch.arange(3)]
    kept = copied(tensors, {torch.float32: torch.float16})
    assert kept[1] is tensors[1] and kept[0].dtype == torch.float16
    new = copied(tensors, {torch.float32: torch.float16}, copy=True)
    assert new[1] is not tensors[1] and torch.equal(new[1], tensors[1])


def test_kinds_of_numpy():
    for cast in (np.int32, np.dtype("int32"), "int32", torch.int32):
        assert copied([np.arange(3)], cast, like="numpy")[0].dtype == np.int32


def test_images_become_numbers():
    image = torch.randint(0, 256, (3, 17, 19), dtype=torch.uint8)
    for cast in (Cast("float32", scale=1 / 255, bias=-0.5), {torch.uint8: Cast(torch.float32, scale=1 / 255, bias=-0.5)}):
        result = copied([image, torch.ones(1)], cast)[0]
        expected = image.float() * torch.tensor(1 / 255) + torch.tensor(-0.5)
        assert torch.equal(result, expected)
    assert torch.equal(copied(image, {torch.uint8: torch.float16}), image.half())


# Deliberate bug: `copied_as` in `leaf.rs` makes every copy contiguous.
def test_dimensions_keep_their_order():
    image = torch.randint(0, 256, (2, 3, 8, 8), dtype=torch.uint8).to(memory_format=torch.channels_last)
    result = copied(image, {torch.uint8: torch.float32})
    assert result.stride() == image.stride() and torch.equal(result, image.float())
    gaps = torch.randn(6, 8)[:, ::2]
    assert torch.equal(copied(gaps, torch.float64), gaps.double())


# Deliberate bugs: `from` in `casts.rs` leaves `saturating` out; `of_leaf` in `errors.rs` leaves the text as it is.
def test_integers_that_do_not_fit_are_named():
    tree = {"labels": [np.array([1, 2]), (torch.tensor([3, 300]),)]}
    with pytest.raises(transship.Error, match=r"^\['labels'\]\[1\]\[0\]: element 1 .* 300"):
        copied(tree, torch.uint8)
    result = copied(tree, Cast("uint8", saturating=True), like="torch")
    assert result["labels"][1][0].tolist() == [3, 255] and result["labels"][0].dtype == torch.uint8


# Deliberate bug: `paths` in `tree/paths.rs` leaves the last step out.
def test_a_function_chooses_for_each_leaf():
    seen = {}

    def choose(path, leaf):
        seen[path] = leaf
        return torch.bfloat16 if path[-1] == "kernel" else None

    tree = {"a": [{"kernel": torch.randn(3), "norm": torch.ones(3)}], "b": np.ones(2)}
    result = copied(tree, choose)
    assert result["a"][0]["kernel"].dtype == torch.bfloat16 and result["a"][0]["norm"] is tree["a"][0]["norm"]
    assert list(seen) == [("a", 0, "kernel"), ("a", 0, "norm"), ("b",)]
    assert seen["b",] is tree["b"] and seen["a", 0, "kernel"] is tree["a"][0]["kernel"]


# Deliberate bugs: `in_groups` in `typed.rs` puts all into one group; `carrier` ignores the casts.
def test_one_type_in_several_ways():
    tensors = [torch.full((n,), float(n)) for n in range(1, 40)]
    to = [torch.float16, torch.bfloat16, torch.float64, None]
    results = copied(tensors, lambda path, leaf: to[path[0] % 4], copy=True)
    for number, (result, tensor) in enumerate(zip(results, tensors)):
        assert_same(result, tensor.to(to[number % 4] or torch.float32))


def test_bytes_stay_what_they_are_beside_bytes_that_are_cast():
    small = [torch.randint(0, 256, (n,), dtype=torch.uint8) for n in (3, 5, 7)]
    tensors = [*small, *(one.view(torch.int8) for one in small), torch.randn(3).half()]
    casts = {torch.uint8: torch.float32, torch.int8: torch.int64, torch.float16: torch.float32}
    results = copied([*tensors, torch.tensor([True]), torch.ones(3).to(torch.float8_e5m2)], casts, copy=True)
    for result, tensor in zip(results, tensors):
        assert_same(result, tensor.to(casts[tensor.dtype]))
    assert results[-2].tolist() == [True] and results[-1].dtype == torch.float8_e5m2


@pytest.mark.parametrize(
    "cast, text",
    [
        ({torch.float32: torch.int32}, "float32"),
        ({torch.float32: torch.float8_e5m2}, "float8_e5m2"),
        ({"float32": "nonsense"}, "nonsense"),
        ({"nonsense": "float32"}, "nonsense"),
        (torch.bool, "bool"),
        (Cast("float64", scale=2), "float64"),
        (lambda path, leaf: 3, "3"),
    ],
)
def test_casts_that_there_are_not(cast, text):
    with pytest.raises(TypeError, match=text):
        copied({"a": [torch.ones(2), torch.ones(2, dtype=torch.uint8)]}, cast)


def test_a_function_that_fails_is_passed_on():
    def fail(path, leaf):
        raise KeyError(path)

    with pytest.raises(KeyError) as raised:
        copied({"a": torch.ones(1)}, fail)
    assert raised.value.__notes__ == ["in the structure to be copied, at ['a']"]


def test_what_pytorch_copies_itself_is_not_cast():
    sparse = torch.eye(3).to_sparse()
    assert copied([sparse, torch.ones(1)], lambda path, leaf: None if path == (0,) else torch.float16)[0] is sparse
    with pytest.raises(TypeError, match="copy itself"):
        copied([sparse], torch.float16)


@pytest.mark.parametrize("memory", ["torch", "transship"])
@pytest.mark.parametrize("seed", seeds(10))
def test_random_tensors(memory, seed):
    rng = random.Random(seed)
    floats, integers = [torch.float16, torch.bfloat16, torch.float32, torch.float64], [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
    tensors, to = [], []
    for _ in range(rng.randrange(1, 80)):
        kind = rng.choice([floats, integers])
        shape = [rng.randrange(9) for _ in range(rng.randrange(4))] if rng.random() < 0.95 else [rng.randrange(200_000)]
        tensor = torch.randint(0, 100, shape).to(rng.choice(kind))
        if tensor.dim() > 1 and rng.random() < 0.4:
            tensor = rng.choice([tensor.transpose(0, -1), tensor[:, ::2]])
        tensors.append(tensor)
        to.append(rng.choice([*kind, None]))
    options = {"packing": rng.random() < 0.7, "alignment": rng.choice([1, 16, 24, 100]), "max_chunk_bytes": rng.choice([1, 4096, 1 << 25])}
    results = copied(tensors, lambda path, leaf: to[path[0]], copy=True, memory=memory, **options)
    for result, tensor, dtype in zip(results, tensors, to):
        assert_same(result, tensor.to(dtype or tensor.dtype))


def test_types_that_numpy_does_not_have_are_refused_at_the_call(monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    monkeypatch.setattr("transship._copy._installed_ml_dtypes", lambda: None)
    tree = {"a": [torch.ones(2, dtype=torch.bfloat16)]}
    for tensor in (tree, {"a": [torch.ones(2).to(torch.float8_e4m3fn)]}):
        for options in ({"copy": True}, {}):
            with pytest.raises(TypeError, match="ml_dtypes") as raised:
                transship.start_copy(tensor, "cpu", like="numpy", **options)
            # 8-bit floating point has no cast.
            assert ("cast=" in str(raised.value)) == (tensor is tree and bool(options))
            assert raised.value.__notes__ == ["in the structure to be copied, at ['a'][0]"]
    assert copied(tree, {"bfloat16": "float32"}, like="numpy")["a"][0].tolist() == [1, 1]
    with pytest.raises(TypeError, match="ml_dtypes"):
        copied([torch.ones(2)], torch.bfloat16, like="numpy")


def test_types_that_ml_dtypes_adds_to_numpy():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"):
        tensor = torch.tensor([1.0, -2.5, 0.25]).to(getattr(torch, name))
        for options in ({"copy": True}, {}):
            array = transship.start_copy([tensor], "cpu", like="numpy", **options).get()[0]
            assert array.dtype == getattr(ml_dtypes, name) and array.astype(np.float32).tolist() == tensor.float().tolist()
    assert copied([torch.ones(2)], torch.bfloat16, like="numpy")[0].dtype == ml_dtypes.bfloat16


# Deliberate bug: `CALLED` in `errors.rs` is empty.
def test_advice_is_what_python_has():
    with pytest.raises(transship.Error, match=r"cannot hold; say saturating=True \(transship.Cast\), or copy int64 without a cast"):
        copied([torch.tensor([300])], {torch.int64: torch.uint8})


# Deliberate bug: `in_groups` in `typed.rs` keeps the cast of each leaf, and compares all of them with that of the next one.
def test_many_casts_take_no_longer_each():
    def fastest(count):
        tree = [torch.zeros(3)] * count
        times = []
        for _ in range(3):
            begin = time.process_time()
            handle = transship.start_copy(tree, "cpu", cast="float16")
            times.append(time.process_time() - begin)
            handle.get()
        return min(times)

    fastest(1_000)
    few, many = fastest(10_000), fastest(40_000)
    assert many < 9 * few, (few, many)
