"""What a statement that raised was given, where that is not finite."""

from __future__ import annotations

import traceback

import pytest
import torch
from tests.monitor import user_program

from finitune.monitor.statements.raising_statement import facts_of_raised

PROJECTION = """
def project(atoms, values, least):
    spread = atoms[1] - atoms[0]
    places = (values - least) / spread
    below = places.floor().clamp(0, 3)
    for row in range(len(values)):
        torch.zeros(4).index_add_(0, below[row].long(), values[row])

project(torch.full((4,), SIZE) * torch.tensor([1.0, STEP, 1.0, 1.0]), torch.full((2, 3), SIZE), SIZE)
"""


def facts_of(source):
    try:
        user_program.run(source, torch=torch)
    except Exception as error:
        return facts_of_raised(list(traceback.walk_tb(error.__traceback__)))
    pytest.fail("nothing was raised")


def test_an_index_that_is_made_of_no_number():
    (fact,) = facts_of(PROJECTION.replace("SIZE", "10.0").replace("STEP", "1.0"))
    assert (fact["variable"], fact["op"]) == ("below", "aten.div")
    assert fact["line"].endswith("in project: places = (values - least) / spread")


def test_nothing_is_said_of_numbers_that_are_finite():
    beyond = PROJECTION.replace(".long()", ".long() + 9")
    assert facts_of(beyond.replace("SIZE", "10.0").replace("STEP", "2.0")) == []


def test_a_mask_is_no_bad_variable():
    assert facts_of("mask = torch.full((3,), -torch.inf)\nmask.view(2)\n") == []


def test_what_holds_no_number_without_a_statement_that_made_it():
    (fact,) = facts_of("def use(given):\n    given.view(2)\n\nuse(torch.tensor([1.0, float('nan'), 2.0]))\n")
    assert (fact["variable"], fact["holds"]) == ("given", "1 nan")


def test_nothing_is_read_of_a_device_that_may_be_lost():
    assert facts_of("def use(given):\n    given.view(2)\n\nuse(torch.empty(3, device='meta'))\n") == []


BAD = "torch.tensor([1.0, float('nan'), 2.0])"


@pytest.mark.parametrize("around", ["with torch.no_grad():", "try:"])
def test_the_line_that_raised_and_not_the_one_that_the_frame_has_left_by(around):
    left_by = "    finally:\n        first.sum()\n" if around == "try:" else ""
    body = f"    {around}\n        first.sum()\n        given.view(2)\n{left_by}"
    (fact,) = facts_of(f"def use(first, given):\n{body}\nuse({BAD}, {BAD})\n")
    assert fact["variable"] == "given"
