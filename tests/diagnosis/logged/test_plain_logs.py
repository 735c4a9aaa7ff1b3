"""Logs of people with one card and no DeepSpeed: ordinary causes first, crashes at the end, rows that are no steps."""

import pytest

from finitune.diagnosis.logged.incidents import diagnose_logs
from finitune.reports.sentences import do, steps

FALLING = [
    f"{{'loss': {2.5 - n / 20:.2f}, 'grad_norm': 1.2, 'learning_rate': 2e-05, 'epoch': {n / 100}}}" for n in range(22)
]
LOST = ["{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 1e-05, 'epoch': 0.5}"] * 6
GRADIENT = ["{'loss': 1.4, 'grad_norm': inf, 'learning_rate': 1e-05, 'epoch': 0.22}"]
OWN = [f"epoch {n} loss {2.5 - n / 20:.3f}" for n in range(25)] + [f"epoch {n} loss nan" for n in range(25, 50)]
DEEPSPEED = ["[2024-01-01] [INFO] [stage_1_and_2.py:149:__init__] Reduce bucket size 500000000"]
TRACE = ["Traceback (most recent call last):", '  File "t.py", line 3, in <module>']
OOM = "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
CLIMB = [f"step {n + 1}: loss 2.000, lr 5e-3" for n in range(30)] + [
    f"step {31 + n}: loss {2.0 * 1.6**n:.3f}, lr 5e-3" for n in range(12)
]


def told(tmp_path, lines, **more):
    (tmp_path / "train.log").write_text("\n".join(lines) + "\n")
    return diagnose_logs(tmp_path / "train.log", **more)


@pytest.mark.parametrize(
    "lines", [[*FALLING, *LOST], [*FALLING, *GRADIENT, *LOST], OWN], ids=["zero", "gradient", "own"]
)
def test_ordinary_causes_come_before_those_whose_frame_nobody_saw(tmp_path, lines):
    (incident,) = told(tmp_path, lines).incidents
    rare = {"comm-overlap-race", "deepspeed-version-regression", "hardware-fault-sdc", "cudnn-sdpa-bug"}
    assert not {cause.cause for cause in incident.causes} & rare
    assert not [r for cause in incident.causes[:2] for r in cause.remedies if r.safety == "safe" and r.patch]


def test_a_frame_that_was_seen_counts(tmp_path):
    (incident,) = told(tmp_path, [*DEEPSPEED, *FALLING, *GRADIENT, *LOST]).incidents
    assert incident.causes[0].cause in ("comm-overlap-race", "deepspeed-version-regression")


def test_a_loss_after_a_lost_gradient_was_made_by_its_update(tmp_path):
    (incident,) = told(tmp_path, [*FALLING, *GRADIENT, *LOST]).incidents
    assert incident.symptom == "nonfinite-gradient"
    assert "gradient norm of row 23 is inf" in incident.message
    assert not [text for text in incident.seen if "the loss was NaN" in text]


def test_rows_without_a_step_are_called_rows(tmp_path):
    assert steps(told(tmp_path, [*FALLING, *LOST]).incidents[0]) == "rows 23-28"
    assert steps(told(tmp_path, [f"step {n}: loss nan" for n in range(7, 20)]).incidents[0]) == "steps 7-19"


@pytest.mark.parametrize(
    ("end", "line"),
    [([OOM], 23), ([*TRACE, "KeyError: 'foo'"], 25), (["Killed"], 23), (["Segmentation fault (core dumped)"], 23)],
    ids=["memory", "exception", "killed", "signal"],
)
def test_a_log_that_ends_in_a_crash_is_an_incident(tmp_path, end, line):
    (incident,) = told(tmp_path, [*FALLING, *end]).incidents
    assert (incident.symptom, incident.causes) == ("crash", [])
    assert incident.message.endswith(f"(train.log:{line})")


@pytest.mark.parametrize(
    "end", [["KeyboardInterrupt"], ["Saving model"], [OOM, *FALLING]], ids=["stopped", "end", "on"]
)
def test_stays_quiet_about_other_ends(tmp_path, end):
    assert not told(tmp_path, [*FALLING, *end]).incidents


def test_the_rate_that_was_used_stands_beside_the_one_that_is_proposed(tmp_path):
    (incident,) = told(tmp_path, CLIMB).incidents
    assert incident.causes[0].cause == "lr-too-high"
    assert do(incident.causes[0].remedies[0]) == "set learning_rate = 2e-5 (it is 0.005)"


def test_what_the_text_says_of_cards_and_dtype_counts(tmp_path):
    said = "\u6211\u7528 8\u5361V100,fp16 \u8bad\u7ec3"
    (incident,) = told(tmp_path, [said, *FALLING, *LOST]).incidents
    assert "bfloat16" not in " ".join(do(r) for r in incident.causes[0].remedies)
    assert incident.causes[0].cause == "fp16-activation-overflow"


GROUP = "{{'loss': {0}, 'grad_norm': {1}, 'reward': {2}, 'reward_std': {3}, 'kl': 0.01, 'epoch': {4}}}"


def test_a_group_of_equal_rewards_is_ordinary(tmp_path):
    rows = [GROUP.format(*((0.0, 0.0, 0.5, 0.0) if n in (4, 17) else (0.01, 0.3, 0.5, 0.2)), n / 40) for n in range(40)]
    found = told(tmp_path, rows)
    assert found.verdict == "healthy"
    assert not [one for one in found.not_checked if "gradient is 0" in one.why]


def test_equal_rewards_to_the_end_are_said(tmp_path):
    rows = [GROUP.format(*((0.0, 0.0, 0.0, 0.0) if n > 19 else (0.01, 0.3, 0.5, 0.2)), n / 40) for n in range(40)]
    found = told(tmp_path, rows)
    assert found.verdict == "healthy", "no incident: a solved task looks the same"
    (said,) = [one.why for one in found.not_checked if "gradient is 0" in one.why]
    assert "in the last 20 rows" in said
    assert "rl-group-std-zero" in said
