"""What each cause foresees, and on what it stays quiet: the rows of the three tables beside this file."""

from __future__ import annotations

import pytest
from tests.causes import foreseen_in_files, foreseen_in_releases, foreseen_in_settings
from tests.causes.rows import Fires, Quiet, asked, found, numbered

from finitune.chapter import causes

TABLES = (foreseen_in_settings.CASES, foreseen_in_releases.CASES, foreseen_in_files.CASES)
CASES = {cause: rows for table in TABLES for cause, rows in table.items()}


def test_every_cause_that_foresees_is_here_with_something_that_it_may_be_taken_for() -> None:
    assert len(CASES) == sum(len(table) for table in TABLES), "each in one table"
    assert set(CASES) ^ {name for name, chapter in causes().items() if chapter.function("foresee")} == set()
    for cause, (rows, others) in CASES.items():
        assert rows, f"{cause}: a row in which it fires"
        assert any(row.cleared for row in others), f"{cause}: a row of something that it may be taken for"
        assert all(len(row.why.split()) > 3 and row.why.endswith(".") for row in others if row.cleared), cause


@pytest.mark.parametrize(("cause", "row"), numbered(CASES, 0))
def test_fires(cause: str, row: Fires) -> None:
    (finding,) = found(cause, **row.facts)
    assert (finding.cause, finding.severity) == (cause, row.severity)
    assert row.at in ("", f"{finding.where.file}: {finding.where.key}")
    for name, value in row.where.items():
        assert getattr(finding.where, name) == value, name
    for part in row.said:
        assert part in finding.message
    for name, value in row.evidence.items():
        assert finding.evidence[name] == value, name
    if row.patch or row.todo:
        assert finding.remedy
        assert row.patch in ({}, finding.remedy.patch)
        assert (finding.remedy.text or "").startswith(row.todo)


@pytest.mark.parametrize(("cause", "row"), numbered(CASES, 1))
def test_stays_quiet(cause: str, row: Quiet) -> None:
    answer = asked(cause, **row.facts)
    assert not answer.results, row.why
    assert not (row.cleared and answer.needs), f"{row.why} Told too little to say so."
    assert not row.instead or found(row.instead, **row.facts), f"{row.why} Then {row.instead} fires."
