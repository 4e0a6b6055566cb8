"""``transship.start_copy_into``: pairing, memory that is filled, errors that name the place."""

import collections
import dataclasses
import time

import numpy as np
import pytest
import torch

import transship

Pair = collections.namedtuple("Pair", "left right")


@dataclasses.dataclass
class Layer:
    weight: torch.Tensor
    name: str = "layer"


def fill(tree, into, **options):
    return transship.start_copy_into(tree, into, **options).get()


def test_what_is_held_is_filled_in_place():
    tree = {"a": [torch.arange(5), "text"], "b": (np.arange(6.0).reshape(2, 3), torch.randn(300_000))}
    into = {"a": [torch.zeros(5, dtype=torch.int64), None], "b": (np.zeros((2, 3)), torch.zeros(300_000))}
    result = fill(tree, into)
    assert result["a"][0] is into["a"][0] and result["b"][0] is into["b"][0] and result["b"][1] is into["b"][1]
    assert result["a"][1] == "text" and type(result["b"]) is tuple
    assert torch.equal(into["a"][0], tree["a"][0]) and torch.equal(into["b"][1], tree["b"][1])
    np.testing.assert_array_equal(into["b"][0], tree["b"][0])


# Deliberate bugs: `pair` in `tree/pair.rs` takes the short way without looking at keys; `add_named` goes by order.
@pytest.mark.parametrize("make", [dict, collections.OrderedDict, lambda items: Pair(*(value for _, value in sorted(items)))])
def test_keys_and_names_belong_together_and_not_their_order(make):
    tree = make([("left", torch.ones(2)), ("right", torch.full((2,), 2.0))])
    into = make([("right", torch.zeros(2)), ("left", torch.zeros(2))])
    result = fill([tree, Layer(torch.ones(3))], [into, Layer(torch.zeros(3), "other")])
    get = (lambda held, name: getattr(held, name)) if isinstance(tree, Pair) else (lambda held, name: held[name])
    assert get(into, "left").tolist() == [1, 1] and get(into, "right").tolist() == [2, 2]
    assert get(result[0], "left") is get(into, "left")
    assert result[1].name == "layer" and result[1].weight.tolist() == [1, 1, 1]


def test_keys_are_compared_as_python_does():
    into = {1.0: torch.zeros(1), (2, "b"): torch.zeros(1)}
    fill({(2, "b"): torch.full((1,), 5.0), 1: torch.full((1,), 4.0)}, into)
    assert [float(tensor) for tensor in into.values()] == [4, 5]


DIFFERENT = [
    ({"a": [torch.ones(1)]}, {"a": [torch.ones(1), torch.ones(1)]}, r"\['a'\]: a list of 1 to copy, but a list of 2"),
    ({"a": torch.ones(1)}, {"b": torch.ones(1)}, r"\['a'\]: it is to be copied"),
    ({"a": torch.ones(1)}, {"a": None}, r"\['a'\]: a tensor to copy, but no tensor"),
    ([None], [torch.ones(1)], r"\[0\]: no tensor to copy, but a tensor"),
    ([torch.ones(1)], (torch.ones(1),), "the structure: a list of 1"),
    ([Layer(torch.ones(2))], [Layer(torch.ones(3))], r"\[0\]\.weight: shape \[2\] of float32 to copy, but shape \[3\] of float32 to copy into$"),
    ({"x": Pair(1, torch.ones(2))}, {"x": Pair(1, torch.ones(2).double())}, r"\['x'\]\.right: .* float64 to copy into; a type is changed by cast="),
    (torch.ones(1), torch.ones(2), "the structure: shape"),
]


@pytest.mark.parametrize("tree, into, text", DIFFERENT, ids=range(len(DIFFERENT)))
def test_what_differs_is_named(tree, into, text):
    with pytest.raises(ValueError, match=text):
        transship.start_copy_into(tree, into)


def test_columns_are_filled_and_nothing_else():
    matrix = torch.zeros(50, 8)
    fill([torch.ones(50, 2), torch.full((50, 3), 2.0)], [matrix[:, :2], matrix[:, 4:7]])
    assert matrix[7].tolist() == [1, 1, 0, 0, 2, 2, 2, 0] and float(matrix.sum()) == 50 * 8
    array = np.zeros((50, 8), np.int16)
    fill([np.ones(50, np.int16)], [array[:, 3]])
    assert array.sum() == 50 and array[:, 3].all()


# Deliberate bug: `lie_alike` in `into.rs` leaves the strides out.
def test_every_order_of_dimensions():
    source = torch.randn(3, 4, 5)
    orders = [(0, 1, 2), (2, 0, 1), (1, 2, 0)]
    for order in orders:
        for other in orders:
            given = source.permute(order).contiguous().permute(*np.argsort(order).tolist())
            into = torch.zeros(3, 4, 5).permute(other).contiguous().permute(*np.argsort(other).tolist())
            fill(given, into)
            assert torch.equal(into, source)


# Deliberate bugs: `pieces` in `into.rs` gives each destination a piece of its own; `check_apart` returns at once.
def test_what_overlaps_is_refused():
    memory = torch.zeros(10)
    with pytest.raises(transship.Error, match=r"\[1\] to copy into"):
        transship.start_copy_into([torch.ones(5), torch.ones(5)], [memory[:5], memory[4:9]])
    with pytest.raises(transship.Error, match="to copy into"):
        transship.start_copy_into([torch.ones(5)], [memory[:1].expand(5)])
    with pytest.raises(ValueError, match="lies within"):
        transship.start_copy_into([memory[:5]], [memory[3:8]])
    with pytest.raises(ValueError, match="lies within"):
        transship.start_copy_into([memory], [memory])
    fill([memory[:5], torch.ones(2)], [memory[5:], torch.zeros(2)])


# Deliberate bugs: `check_apart` in `into.rs` takes the first of both for the one that counts; it takes what begins and ends alike for the same place; it does not
# note how far the last one of a pair goes.
def test_a_destination_that_is_there_twice_gets_what_comes_last():
    one, other = torch.nn.Linear(3, 3, bias=False), torch.nn.Linear(3, 3, bias=False)
    other.weight = one.weight
    tied = torch.nn.Sequential(one, torch.nn.Linear(3, 3), other)
    checkpoint = {name: torch.full_like(tensor, float(number)) for number, (name, tensor) in enumerate(tied.state_dict().items())}
    fill(checkpoint, tied.state_dict())
    assert [tensor.unique().tolist() for tensor in tied.state_dict().values()] == [[3.0], [1.0], [2.0], [3.0]]
    fill([checkpoint["0.weight"].double(), checkpoint["2.weight"], checkpoint["0.weight"].half()], [one.weight.detach()] * 3, cast=torch.float32)
    assert one.weight.unique().tolist() == [0.0]
    held = torch.zeros(4, 4)
    with pytest.raises(transship.Error, match="to copy into"):
        transship.start_copy_into([torch.ones(4, 4), torch.ones(4, 4)], [held, held.T])
    # By two copies: one type in two ways.
    four = torch.ones(4, dtype=torch.uint8)
    for scales in ([2, 3, 2], [3, 2, 2], [2, 2, 3]):
        twice = [four, four, four], [held[0], held[0], held[1]]
        fill(*twice, cast=lambda path, leaf: transship.Cast("float32", scale=scales[path[0]]))
        assert held[:2].tolist() == [[scales[1]] * 4, [scales[2]] * 4]
        with pytest.raises((ValueError, transship.Error), match="lies within|to copy into"):
            lies_over = [four, four, four], [held[0], held[0], held.view(-1)[2:6]]
            transship.start_copy_into(*lies_over, cast=lambda path, leaf: transship.Cast("float32", scale=scales[path[0]]))


# Deliberate bugs: `read_to_write` in `dlpack.rs` leaves the flags out; `of_torch` in `destinations.rs` does not ask whether it records.
def test_what_must_not_be_written_is_named():
    read_only = np.zeros(3)
    read_only.flags.writeable = False
    for into, error in [
        (read_only, ValueError),
        (np.zeros(6)[::-2], TypeError),
        (np.ma.zeros(3), TypeError),
        (torch.zeros(3, dtype=torch.float64, requires_grad=True), ValueError),
        (torch.zeros(3, dtype=torch.float64).to_sparse(), TypeError),
        (torch.zeros(3, dtype=torch.complex128).conj(), TypeError),
        (torch._neg_view(torch.zeros(3)), TypeError),
    ]:
        with pytest.raises(error) as raised:
            transship.start_copy_into({"k": np.ones(3)}, {"k": into})
        assert "['k']" in str(raised.value) + "".join(getattr(raised.value, "__notes__", []))


def test_parameters_under_no_grad():
    layer = torch.nn.Linear(3, 2)
    address = layer.weight.data_ptr()
    with torch.no_grad():
        fill({"weight": torch.ones(2, 3), "bias": torch.ones(2)}, dict(layer.named_parameters()))
    assert layer.weight.tolist() == [[1, 1, 1], [1, 1, 1]] and layer.weight.data_ptr() == address
    fill({"weight": torch.zeros(2, 3), "bias": torch.ones(2)}, layer.state_dict())
    assert not layer.weight.any()


# Deliberate bug: `start_copy_into` in `calls.rs` takes what goes through for a structure: nothing would be filled, and no error would say so.
@pytest.mark.parametrize("make", [lambda: torch.nn.Linear(2, 2), lambda: iter([torch.ones(2)]), lambda: {torch.ones(2)}])
def test_what_is_no_structure_is_refused(make):
    with pytest.raises(TypeError, match="no container that is known here.*state_dict"):
        transship.start_copy_into(make(), make())


# Deliberate bug: `add_named` in `tree/pair.rs` compares numbers of keys.
def test_keys_that_differ_are_named():
    one, other = {"m": {"a": torch.ones(1), "b": torch.ones(1)}}, {"m": {"a": torch.ones(1)}}
    with pytest.raises(ValueError, match=r"\['m'\]\['b'\]: it is to be copied"):
        transship.start_copy_into(one, other)
    with pytest.raises(ValueError, match=r"\['m'\]\['b'\]: it is in the structure to copy into"):
        transship.start_copy_into(other, one)


# Deliberate bug: `IS` of `Destinations` is that of what is copied.
def test_errors_say_which_structure_is_meant():
    backward = np.ones(2)[::-1]
    for tree, into, which in [({"a": [np.ones(2)]}, {"a": [backward]}, "to copy into"), ({"a": [np.array(["x"])]}, {"a": [np.ones(1)]}, "to be copied")]:
        with pytest.raises(TypeError) as raised:
            transship.start_copy_into(tree, into)
        assert raised.value.__notes__ == [f"in the structure {which}, at ['a'][0]"]


# Deliberate bug: `start_copy_into` in `calls.rs` marks what is written before it has looked at shapes.
@pytest.mark.parametrize("source", [torch.ones(4), torch.ones(3, dtype=torch.int32)])
def test_what_is_refused_is_not_written_for_autograd_either(source):
    weight, held = torch.ones(3, requires_grad=True), torch.zeros(3)
    loss = (weight * held).sum()
    with pytest.raises(ValueError):
        transship.start_copy_into([source], [held])
    loss.backward()
    assert weight.grad.tolist() == [0, 0, 0]


# Deliberate bug: `mark_written` in `torch/mod.rs` does nothing.
def test_autograd_notices_that_what_it_saved_was_written():
    held, weight = torch.ones(3), torch.ones(3, requires_grad=True)
    product = (weight * held).sum()
    fill([torch.zeros(3)], [held])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()
    with torch.inference_mode():
        fill([torch.zeros(3)], [torch.ones(3)])


def test_what_pytorch_copies_itself():
    into = torch.zeros(2, dtype=torch.complex64)
    result = fill([torch.tensor([1 + 2j, 3j], dtype=torch.complex64).conj()], [into])
    assert result[0] is into and into.tolist() == [1 - 2j, -3j]
    with pytest.raises(TypeError):
        fill([torch.ones(2, dtype=torch.complex64).conj()], [np.zeros(2, np.complex64)])


# Deliberate bugs: `check_for_torch` in `into.rs` is asked when the library has begun; `check_apart` there leaves out what PyTorch fills.
def test_nothing_is_written_unless_pytorch_can_fill_its_part():
    first, memory = torch.zeros(3), torch.zeros(10, dtype=torch.complex64)
    odd = torch.ones(4, dtype=torch.complex64).conj()
    for into, error in [(np.zeros(4, np.complex64), TypeError), (torch.zeros(5, dtype=torch.complex64), ValueError), (torch.zeros(4), ValueError)]:
        with pytest.raises(error):
            fill([torch.ones(3), odd], [first, into])
    with pytest.raises(ValueError, match=r"\[1\]: .*lies within"):
        fill([torch.ones(4, dtype=torch.complex64), odd], [memory[:4], memory[2:6]])
    assert not first.any() and not memory.any()
    fill([torch.ones(4, dtype=torch.complex64), odd], [memory[:4], memory[4:8]])
    assert memory[:8].sum() == 8


def test_nothing_is_written_any_more_once_it_has_raised():
    large, source = torch.zeros(1 << 22), torch.ones(1 << 22)
    for _ in range(5):
        with pytest.raises(RuntimeError, match="not implemented"):
            transship.start_copy_into([source, torch.eye(3).to_sparse()], [large, torch.zeros(3, 3)])
        large.fill_(5)
        time.sleep(0.02)
        assert bool((large == 5).all())


# Deliberate bug: `fill_by_torch`, or `check_for_torch`, in `into.rs` passes the error on as it is.
@pytest.mark.parametrize("into", [torch.zeros(3, 3), np.zeros((3, 3), np.float32)])
def test_what_pytorch_cannot_copy_is_named(into):
    with pytest.raises((RuntimeError, TypeError)) as raised:
        transship.start_copy_into({"a": [torch.ones(2), torch.eye(3).to_sparse()]}, {"a": [torch.zeros(2), into]})
    said = str(raised.value) + "".join(getattr(raised.value, "__notes__", []))
    assert said.endswith("at ['a'][1]")


def test_types_change_on_the_way():
    into = [torch.zeros(4, dtype=torch.bfloat16), np.zeros(3, np.float32), torch.zeros(2)]
    tree = [torch.randn(4), np.array([0, 51, 255], np.uint8), torch.ones(2)]
    to = {torch.float32: torch.bfloat16, "uint8": transship.Cast("float32", scale=1 / 255)}
    with pytest.raises(ValueError, match=r"\[2\]: .* bfloat16 to copy"):
        transship.start_copy_into(tree, into, cast=to)
    fill(tree, into, cast=lambda path, leaf: None if path == (2,) else (torch.bfloat16 if path == (0,) else to["uint8"]))
    assert torch.equal(into[0], tree[0].bfloat16()) and into[1].tolist() == [0, np.float32(51 * np.float32(1 / 255)), 1]


def test_tensors_of_transship():
    held = transship.start_copy([np.zeros(3), np.zeros((2, 2))], "cpu", copy=True, like="dlpack").get()
    result = fill([np.ones(3), np.full((2, 2), 3.0)], held)
    assert result[0] is held[0]
    assert np.from_dlpack(held[1]).tolist() == [[3, 3], [3, 3]] and np.from_dlpack(held[0]).sum() == 3


def test_nothing_to_do():
    assert fill([], []) == [] and fill({"a": "text"}, {"a": 3}) == {"a": "text"}
    into = torch.zeros(0, 3)
    assert fill(torch.ones(0, 3), into) is into


def test_large_ones_await_and_fill_again():
    held = [torch.zeros(1 << 22), torch.zeros(3)]
    for value in range(5):
        handle = transship.start_copy_into([torch.full((1 << 22,), float(value)), torch.full((3,), float(value))], held)
        assert handle.get()[0] is held[0] and handle.ready()
        assert float(held[0][-1]) == value == float(held[1][0])
