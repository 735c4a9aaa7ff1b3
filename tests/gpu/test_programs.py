"""Programs of a GPU as strangers write them, judged as those of `tests/programs`: alone and watched."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.programs.trial import tried
from tests.programs.truth import truths

PROGRAMS = Path(__file__).parent / "programs"
TRUTHS = truths(PROGRAMS)


def test_each_program_has_its_truth() -> None:
    assert {path.stem for path in PROGRAMS.glob("*.py")} == set(TRUTHS)


@pytest.mark.programs
@pytest.mark.parametrize("name", TRUTHS)
def test_a_program_of_a_stranger(name: str, tmp_path: Path) -> None:
    trial = tried(PROGRAMS, name, TRUTHS[name], tmp_path)
    if trial.missing:
        pytest.skip(trial.missing)
    assert not (wrong := trial.wrong()), wrong
