"""What each cause makes of a run that failed: inputs that speak for it, and inputs of what it may be taken for."""

from __future__ import annotations

import pytest
from tests.causes import weighed_by_facts, weighed_by_origin
from tests.causes.rows import Weighed, bits, numbered, terms

from finitune.chapter import causes

TABLES = (weighed_by_origin.CASES, weighed_by_facts.CASES)
CASES = {cause: rows for table in TABLES for cause, rows in table.items()}


def test_every_cause_that_weighs_is_here_with_something_that_it_may_be_taken_for() -> None:
    assert len(CASES) == sum(len(table) for table in TABLES), "each in one table"
    assert set(CASES) ^ {name for name, chapter in causes().items() if chapter.function("weigh")} == set()
    for cause, (ours, others) in CASES.items():
        assert any(row.low >= 0 or row.silent for row in ours), f"{cause}: inputs that do not speak against it"
        assert any(row.less or row.silent or row.high < 1 for row in others), f"{cause}: inputs of something else"
        assert all(row.why.endswith(".") for row in others), f"{cause}: why each is none"


def holds(cause: str, row: Weighed) -> None:
    said = terms(cause, **row.inputs)
    total = sum(term.bits for term in said)
    assert not (row.silent and said), row.why
    assert row.low < total < row.high, row.why
    assert not row.less or total < bits(cause, **CASES[cause][0][0].inputs), row.why


@pytest.mark.parametrize(("cause", "row"), numbered(CASES, 0))
def test_speaks_for_it(cause: str, row: Weighed) -> None:
    holds(cause, row)


@pytest.mark.parametrize(("cause", "row"), numbered(CASES, 1))
def test_does_not_speak_for_what_it_may_be_taken_for(cause: str, row: Weighed) -> None:
    holds(cause, row)


def test_what_no_fact_shows_is_not_foreseen() -> None:
    assert not causes()["hardware-fault-sdc"].function("foresee")
