"""What a diagnosis of a log shows: places, escapes, and nothing that breaks it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from tests.diagnosis.logged.test_verdict import LADDER, MINIMUM, STOPPED, diagnose, falling, record

from finitune.diagnosis.logged.incidents import diagnose_logs
from finitune.finding import UnreadableInput, as_json
from finitune.reports.terminal import print_diagnosis


def test_evidence_names_its_line(tmp_path: Path) -> None:
    found = diagnose(tmp_path, "".join(falling(117)) + record("0.0", "nan", 1e-5, 2.0) * 4).incidents[0]
    assert "(train.log:118)" in found.message
    assert any("train.log:118" in term.text for term in found.causes[0].evidence)
    assert (found.step, found.last_good) == (118, 117)


def test_a_text_that_is_no_log_is_not_called_healthy(tmp_path: Path) -> None:
    path = tmp_path / "essay.txt"
    path.write_text("Nothing is told here.\n")
    with pytest.raises(UnreadableInput, match=r"essay\.txt"):
        diagnose_logs(path)


def test_hostile_text_is_escaped_and_no_markup(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (
        "RuntimeError: probability tensor contains either [link=http://evil.example]\x1b]8;;http://evil.com\x07[red]\n"
    )
    print_diagnosis(diagnose(tmp_path, text), Console(markup=False, highlight=False, force_terminal=True, width=100))
    out = capsys.readouterr().out
    assert "]8;;" not in out
    assert "evil" not in out
    assert "(link left out)" in out


WORDS = st.sampled_from([
    "nan", "inf", "-inf", "0.0", "'0'", "1e309", "-1", "2.5", "1.414", "1e-08", "0",
])  # fmt: skip
ROW = st.builds(record, WORDS, WORDS, WORDS, st.sampled_from([0.1, 0.2, -1.0]))
LINES = st.one_of(
    ROW,
    st.integers(0, 40).map(lambda k: LADDER.format(2**k, f"reducing to {2**k // 2}")),
    st.sampled_from(
        [MINIMUM, STOPPED, "{'eval_loss': nan}\n", "step 999999999999 loss nan\n", "[Rank 0] step=7, skipped=7\n"]
    ),
)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.lists(LINES, min_size=1, max_size=40))
def test_no_log_breaks_a_diagnosis(tmp_path_factory: pytest.TempPathFactory, lines: list[str]) -> None:
    found = diagnose(tmp_path_factory.mktemp("log"), "".join(lines))
    console = Console(markup=False, highlight=False, width=100, quiet=True)
    print_diagnosis(found, console, verbose=True)
    json.dumps(as_json(found), allow_nan=False)
    for incident in found.incidents:
        assert incident.causes
        assert incident.step >= 0


@pytest.mark.parametrize(
    ("line", "symptom"),
    [
        ("finitune: step 3: gradients are not finite (13 of 75 tensors). Update discarded.\n", "nonfinite-gradient"),
        ("finitune: step 3: the update is not finite, although loss and gradients are.\n", "nonfinite-gradient"),
        ("finitune: step 3: loss is nan. Update discarded; weights are those of step 2.\n", "nonfinite-loss"),
    ],
)
def test_the_log_of_a_guarded_run_is_no_healthy_one(line: str, symptom: str, tmp_path: Path) -> None:
    found = diagnose(tmp_path, "".join(falling(20)) + line)
    assert [incident.symptom for incident in found.incidents] == [symptom]
    assert ":21)" in found.incidents[0].message
