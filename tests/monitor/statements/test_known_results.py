"""What a function has drawn by itself is known where it returned it; the rest is computed again from that."""

import pytest
import torch
from tests.monitor import user_program

from finitune.monitor.statements.bad_statement import bad_statement

WEIGHT = torch.ones(3, requires_grad=True)
X = torch.arange(12.0).reshape(4, 3)

REPLAY = """
class Replay:
    def __init__(self, priorities):
        self.priorities, self.generator = priorities, torch.Generator().manual_seed(2)

    def draw(self, k):
        p = torch.tensor(self.priorities)
        p = p / p.sum()
        chosen = torch.randint(len(p), (k,), generator=self.generator)
        rarity = p[chosen] ** -0.5
        rarity = rarity / rarity.max()
        RETURN

replay = Replay([1.0, 0.0, 1.0, 1.0])
TAKE
loss = (rarity * (x @ w)[chosen].square()).mean()
found()
"""
TUPLE = REPLAY.replace("RETURN", "return chosen, rarity").replace("TAKE", "chosen, rarity = replay.draw(8)")
DICTIONARY = REPLAY.replace("RETURN", "return {'chosen': chosen, 'rarity': rarity}").replace(
    "TAKE", "drawn = replay.draw(8)"
)
DICTIONARY = DICTIONARY.replace("rarity * (x @ w)[chosen]", "drawn['rarity'] * (x @ w)[drawn['chosen']]")


def users(source):
    return user_program.found(source, bad_statement, w=WEIGHT, x=X)


@pytest.mark.parametrize("source", [TUPLE, DICTIONARY], ids=["tuple", "dictionary"])
def test_of_what_a_function_drew_by_itself_the_rest_is_computed(source):
    origin = users(source)
    assert (origin.op, origin.phase) == ("aten.pow", "input")
    assert origin.line == "user_program.py:10 in draw: rarity = p[chosen] ** -0.5"


def test_what_was_overwritten_since_is_not_known():
    origin = users(
        TUPLE.replace("loss =", "picked, chosen = chosen, chosen * 0\nloss =").replace("[chosen].sq", "[picked].sq")
    )
    assert origin.op != "aten.pow"


def test_a_variable_that_is_written_twice_is_not_the_one_that_was_returned():
    twice = TUPLE.replace(
        "        rarity = p[chosen] ** -0.5\n", "        rarity = p[chosen] ** -0.5\n        chosen = chosen % 2\n"
    )
    assert users(twice).op != "aten.pow"
