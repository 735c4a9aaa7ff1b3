"""Logs that nobody had tried before: infinite losses, rewards without a spread, TRL's PPO, an end by the scheduler."""

from __future__ import annotations

from pathlib import Path

import pytest

from finitune.diagnosis.diagnose import diagnose
from finitune.finding import Diagnosis


def told(tmp_path: Path, text: str, name: str = "a.log") -> Diagnosis:
    (tmp_path / name).write_text(text)
    found = diagnose(tmp_path / name)
    assert isinstance(found, Diagnosis)
    return found


def rows(count: int, start: int = 1, **said: object) -> str:
    line = {"loss": 2.0, "grad_norm": 1.1, "learning_rate": 1e-5, **said}
    return "".join(f"{ {**line, 'epoch': i / 100} }\n" for i in range(start, start + count))


def falling(count: int, start: int = 1) -> str:
    return "".join(rows(1, i, loss=2.5 - i / 50) for i in range(start, start + count))


@pytest.mark.parametrize(("loss", "first"), [("nan", True), ("inf", False)])
def test_a_loss_over_no_target_is_nan_and_never_infinite(tmp_path: Path, loss: str, first: bool) -> None:
    log = falling(20) + rows(1, 21, loss="x").replace("'x'", loss) + falling(20, 22)
    (incident,) = told(tmp_path, log).incidents
    assert (incident.step, incident.causes[0].cause == "all-labels-ignored") == (21, first)


REWARDS = "{{'loss': 0.0, 'grad_norm': {norm}, 'reward': {reward}, 'reward_std': 0.0, 'kl': 0.0, 'epoch': {at}}}\n"


def test_fires_where_no_row_of_rewards_has_a_gradient(tmp_path: Path) -> None:
    log = "".join(REWARDS.format(norm=0.0, reward=0.0, at=i / 100) for i in range(1, 40))
    (incident,) = told(tmp_path, log).incidents
    assert (incident.symptom, incident.causes[0].cause) == ("zero-gradient", "rl-group-std-zero")


def test_stays_quiet_where_rewards_have_converged(tmp_path: Path) -> None:
    log = "".join(REWARDS.format(norm=0.4 if i < 20 else 0.0, reward=min(1, i / 20), at=i / 100) for i in range(1, 60))
    assert told(tmp_path, log).verdict == "healthy"


def test_the_names_of_ppo_in_trl(tmp_path: Path) -> None:
    line = "{{'objective/kl': 0.1, 'loss/policy_avg': {}, 'loss/value_avg': 0.3, 'lr': 3e-06}}\n"
    healthy = "".join(line.format((-1) ** i * 0.01) for i in range(40))
    assert told(tmp_path, healthy).steps == 40
    assert told(tmp_path, healthy).verdict == "healthy"
    assert told(tmp_path, healthy + line.format("nan") * 3).incidents[0].step == 41


@pytest.mark.parametrize(
    ("end", "dead"),
    [
        ("slurmstepd: error: *** JOB 12 ON n1 CANCELLED AT 2026-01-10T10:00:00 DUE TO TIME LIMIT ***\n", True),
        ("slurmstepd: error: *** STEP 12.0 ON n1 CANCELLED AT 2026-01-10T10:00:00 DUE TO PREEMPTION ***\n", True),
        ("slurmstepd: error: *** JOB 12 ON n1 CANCELLED AT 2026-01-10T10:00:00 ***\n", False),
        ("slurmstepd: info: Setting TMPDIR\n", False),
    ],
)
def test_a_scheduler_that_ends_a_job_by_itself_is_said(tmp_path: Path, end: str, dead: bool) -> None:
    found = told(tmp_path, falling(20) + end)
    assert [one.symptom for one in found.incidents] == (["crash"] if dead else [])


def test_a_long_line_is_cut_with_dots(tmp_path: Path) -> None:
    (incident,) = told(tmp_path, falling(20) + f"terminate called after throwing {'x' * 400}\n").incidents
    assert 'x..."' in incident.message


def test_steps_of_runs_side_by_side_are_not_added(tmp_path: Path) -> None:
    lines = "".join(f"{i},{2 - i / 50},{2 - i / 60}\n" for i in range(1, 20))
    assert told(tmp_path, "Step,a - train/loss,b - train/loss\n" + lines, "p.csv").steps == 19
