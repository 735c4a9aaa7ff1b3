"""A buffer that was made bad as its module was made: the constructor computed again with what attributes tell of it."""

import pytest
import torch
from tests.monitor import user_program
from torch import nn

from finitune.monitor.origin.locate import leaf_origin
from finitune.monitor.probes.finite import places
from finitune.monitor.statements.constructors import made_by_constructor

BANK = """
def triangles(bins, rows):
    hits = torch.arange(rows).unsqueeze(1) < bins
    hits = hits.float().expand(rows, bins)
    return hits / hits.sum(1, keepdim=True)

class Bank(torch.nn.Module):
    def __init__(self, bins, rows=4):
        super().__init__()
        KEEP
        self.register_buffer("bank", triangles(bins, rows))

made.append(torch.nn.Sequential(Bank(2)))
"""


def bank(keep):
    made = []
    user_program.run(BANK.replace("KEEP", keep), torch=torch, made=made)
    return made[0]


@pytest.mark.parametrize(("keep", "found"), [("self.bins = bins", True), ("self._bins = bins", True), ("pass", False)])
def test_the_operator_is_named_where_the_buffer_comes_out_again(keep, found):
    root = bank(keep)
    held = leaf_origin("parameter", "0.bank", root[0].bank, places(root[0].bank))
    made = made_by_constructor(held, [nn.Linear(2, 2), root])
    assert (made is not None) == found
    if made is not None:
        assert (made.op, made.phase, made.tensor) == ("aten.div", "input", "0.bank")
        assert made.line == "user_program.py:5 in triangles: return hits / hits.sum(1, keepdim=True)"


def test_a_buffer_that_was_written_since_is_not_of_the_constructor():
    root = bank("self.bins = bins")
    root[0].bank[0] = torch.nan
    held = leaf_origin("parameter", "0.bank", root[0].bank, places(root[0].bank))
    assert made_by_constructor(held, [root]) is None
