"""What is known of tensors is found by the tensor itself, and goes with it."""

from __future__ import annotations

import torch

from finitune.monitor.origin.tensor_map import TensorMap


def test_it_is_found_by_the_tensor_and_not_by_its_values():
    known, one, equal = TensorMap[str](), torch.ones(2), torch.ones(2)
    known.add(one, "one")
    assert known.of([equal]) == []
    assert known.of([equal, one]) == ["one"]


def test_several_things_come_in_the_order_in_which_they_were_added():
    known, first, second = TensorMap[int](), torch.ones(1), torch.ones(1)
    for number, tensor in enumerate([second, first, second]):
        known.add(tensor, number)
    assert known.of([first, second]) == [0, 1, 2]
    assert list(known.latest()) == [2, 1, 0]


def test_a_new_tensor_in_the_place_of_one_that_is_gone_is_not_known():
    known = TensorMap[str]()
    for _ in range(50):  # most of them get the number of the one before
        tensor = torch.ones(1)
        assert not known.has(tensor)
        known.add(tensor, "gone")
    assert [what for _, what in known.living()] == [["gone"]]
    known.clear()
    assert not known.has(tensor)


def test_what_is_known_of_a_row_is_known_of_the_whole():
    known, table = TensorMap[str](), torch.zeros(3, 2)
    row = table[1]
    known.add(row, "mean")
    known.add(table[1], "mean")
    assert known.of([table, row]) == ["mean"]
    assert not known.has(table[2])
