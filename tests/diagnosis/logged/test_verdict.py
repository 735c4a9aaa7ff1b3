"""Diagnosis from logs alone, and with facts: founding incidents, look-alikes, healthy runs, and no trust in a log."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finitune.cli.main import main
from finitune.diagnosis.logged.failed_attempts import failed_attempts
from finitune.diagnosis.logged.incidents import diagnose_logs, diagnosis_of
from finitune.facts import Facts, Parallel, Precision
from finitune.finding import Diagnosis
from finitune.sources import logs
from finitune.sources.logs.deepspeed import groups_written_as

ROOT = Path(__file__).parents[3]
REAL = ROOT / "tests" / "data" / "logs"
"""Printed by real runs: the examples of this repository, and HF Trainer with a tiny model."""


def diagnose(tmp_path: Path, text: str, facts: Facts | None = None) -> Diagnosis:
    path = tmp_path / "train.log"
    path.write_text(text)
    reading = logs.read(path)
    return diagnosis_of(reading, (facts or Facts()).over(reading.facts))


def first_three(diagnosis: Diagnosis) -> list[str]:
    assert diagnosis.incidents
    return [cause.cause for cause in diagnosis.incidents[-1].causes]


def record(loss: object, norm: object, rate: object = 1e-5, epoch: float = 0.1) -> str:
    return f"{{'loss': {loss}, 'grad_norm': {norm}, 'learning_rate': {rate}, 'epoch': {epoch}}}\n"


HALF = Facts(precision=Precision(compute="float16", scaler="dynamic"))
BRAIN = Facts(precision=Precision(compute="bfloat16", scaler="none"))
ZERO = dataclasses.replace(BRAIN, parallel=Parallel(kind="deepspeed", zero_stage=2, overlap_comm=True))

LADDER = "[INFO] [deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: {}, {}\n"
HYSTERESIS = "but hysteresis is 2. Reducing hysteresis to 1"


def ladder(begin: int, end: int) -> str:
    return LADDER.format(2**begin, HYSTERESIS) + "".join(
        LADDER.format(2**k, f"reducing to {2 ** (k - 1)}") for k in range(begin, end, -1)
    )


MINIMUM = "Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.\n"
STOPPED = (
    "Training:  33%|### | 429/1287 [10:01<20:00,  1.40s/it, loss=nan]\n"
    "Found NaN or inf values in parameter 'model.layers.0.self_attn.q_proj.lora_A.default.weight' of module 'LLM'\n"
    "NaN or inf tensors found in the model. Stopping training.\n"
)


@pytest.mark.parametrize(
    ("log", "cause", "line"),
    [
        ("yi-zero2.log", "untrained-token-embeddings", 18),
        ("medicalgpt-bf16-zero2.log", "comm-overlap-race", 9),
        ("ludwig-batch-4.log", "unmasked-padding", 5),
        ("unsloth-unpacked.log", "fp16-activation-overflow", 1),
        ("omnilmm-tuned.log", "fp16-activation-overflow", 1),
        ("trainer-rate-3.log", "lr-too-high", 4),
        ("trainer-all-ignored.log", "all-labels-ignored", 1),
        ("trainer-eval-ignored.log", "all-labels-ignored", 11),
    ],
)
def test_real_broken_runs(log: str, cause: str, line: int) -> None:
    found = diagnose_logs(REAL / log)
    assert cause in first_three(found)
    assert f"({log}:{line})" in found.incidents[0].message


@pytest.mark.parametrize(
    "log",
    [
        "trainer-healthy.log",
        "trainer_state.json",
        "lightning-metrics.csv",
        "ludwig-batch-1.log",
        "unsloth-packed.log",
        "omnilmm-warmup.log",
    ],
)
def test_real_healthy_runs(log: str) -> None:
    assert diagnose_logs(REAL / log).verdict == "healthy"


def falling(count: int, start: float = 4.0) -> list[str]:
    return [record(round(start * 0.97**n + 0.5, 4), 1.3, 1e-5, n / count) for n in range(count)]


HEALTHY = {
    "falls": "".join(falling(60)),
    "warm-up of the loss scale": ladder(16, 13) + "".join(falling(40)),
    "a start at 2**32": ladder(32, 14) + "".join(falling(40)),
    "a start at 2**32, cut short": ladder(32, 17),
    "skipped steps of GradScaler": record(4.5, "nan", 0, 0) + record(4.6, "inf", 0, 0) + "".join(falling(40)),
    "one skipped step later on": "".join(
        [*falling(40), record(1.5, "inf", 1e-5, 1.0), *[record(1.4, 1.2, 1e-5, 1.1)] * 9]
    ),
    "a spike that recovers": "".join(
        [*falling(40), record(60.0, 900.0, 1e-5, 1.0), *[record(1.6, 1.2, 1e-5, 1.1)] * 20]
    ),
    "a restart": "".join([*falling(40), "restarting from checkpoint-10\n", *falling(40)[10:]]),
    "loss 0 in earnest": "".join(record(v, 0.01) for v in (1.0, 0.5, 0.1, 0.02, 0.006, 0.002, "0.0", 0.001, "0.0")),
    "reinforcement": "".join(
        f"{{'loss': 0.0, 'grad_norm': {0.1 + n / 99:.3f}, 'reward': {n}, 'kl': 0.01, 'epoch': {n / 9}}}\n"
        for n in range(30)
    ),
    "lightning": "".join(
        f"Epoch 0: 5%|#| {n}/99 [00:01<00:01, 9it/s, v_num=0, train_loss={5 - n / 30:.3f}]\r" for n in range(99)
    ),
    "a norm of 1.0 by chance": "".join([*falling(20), record(2.5, 1.0, 1e-5, 1.0), *[record(2.4, 1.1, 1e-5, 1.1)] * 5]),
}


@pytest.mark.parametrize("kind", HEALTHY)
def test_healthy_logs(kind: str, tmp_path: Path) -> None:
    found = diagnose(tmp_path, HEALTHY[kind])
    assert found.verdict == "healthy", found.incidents[0].message


@settings(max_examples=60, deadline=None)
@given(
    noise=st.lists(st.floats(-0.15, 0.15), min_size=30, max_size=150),
    skips=st.lists(st.integers(0, 149), max_size=2),
    drop=st.floats(0.5, 3.0),
)
def test_noise_and_a_skipped_step_are_healthy(
    tmp_path_factory: pytest.TempPathFactory, noise: list[float], skips: list[int], drop: float
) -> None:
    count = len(noise)
    lines = [
        record(f"{1 + drop * (1 - n / count) + x:.4f}", "inf" if n in skips and n < count - 5 else 1.2, 1e-5, n / count)
        for n, x in enumerate(noise)
    ]
    assert diagnose(tmp_path_factory.mktemp("log"), "".join(lines)).verdict == "healthy"


SUDDEN = "".join(falling(200)) + record("0.0", "nan", 9e-6, 2.0) * 5
LOOKALIKES = [
    # loss 0.0, grad_norm nan from the start: the dtype decides
    (record("0.0", "nan", 1e-6) * 6, HALF, "fp16-activation-overflow", "comm-overlap-race"),
    (record("0.0", "nan", 1e-6) * 6, BRAIN, "fully-masked-attention-rows", "fp16-activation-overflow"),
    (record("0.0", "nan", 1e-6) * 6, ZERO, "comm-overlap-race", "fp16-activation-overflow"),
    (
        record("0.0", "nan", 1e-6) * 6,
        dataclasses.replace(BRAIN, parallel=Parallel(kind="none")),
        "fully-masked-attention-rows",
        "comm-overlap-race",
    ),
    # first loss finite, gradient not
    (record(2.0, "nan") + record("0.0", "nan") * 5, HALF, "fp16-backward-overflow", "all-labels-ignored"),
    # zero and zero
    (record("0.0", "0.0") * 6, None, "all-labels-ignored", "fp16-activation-overflow"),
    # climbs, then NaN; and at once
    (
        "".join(record(v, v) for v in (2, 2, 2, 2, 2, 5, 8, 14)) + record("nan", "nan") * 3,
        None,
        "lr-too-high",
        "comm-overlap-race",
    ),
    (SUDDEN, None, "bad-data-sample", "comm-overlap-race"),  # ZeRO prints no norm that is nan
    (SUDDEN.replace("nan", "1.0"), None, "comm-overlap-race", "corrupt-checkpoint"),  # but this one
    (SUDDEN, ZERO, "comm-overlap-race", "corrupt-checkpoint"),
    ("".join(falling(20)) + "{'eval_loss': nan, 'epoch': 1.0}\n", None, "all-labels-ignored", "lr-too-high"),
]


@pytest.mark.parametrize(("text", "facts", "likely", "unlikely"), LOOKALIKES)
def test_the_same_symptom_with_other_facts(
    text: str, facts: Facts | None, likely: str, unlikely: str, tmp_path: Path
) -> None:
    found = diagnose(tmp_path, text, facts)
    assert likely in first_three(found)
    assert unlikely not in first_three(found)
    assert found.incidents[0].next_check


def signs(tmp_path: Path, text: str) -> set[str]:
    path = tmp_path / "train.log"
    path.write_text(text)
    return {name for failed in failed_attempts(logs.read(path)) for name in failed.observed}


HUGE = [record(round(2.4 - n / 400, 4), f"{3e17 * (1 + n % 2):.3g}", 1e-5, n / 40) for n in range(40)]
ROUND = [record(round(2.0437 + (n * 5 % 7) / 10, 4), 1.2, 1e-5, n / 7) for n in range(28)]
REWARDED = "{{'loss': {}, 'grad_norm': 1.1, 'reward': 0.4, 'kl': {}, 'epoch': 0.1}}\n"


@pytest.mark.parametrize(
    ("text", "sign"),
    [
        ("".join(HUGE), "huge-norm"),
        ("".join(ROUND), "loss-repeats"),
        (record(2.0437, 1.0) * 24, "loss-repeats"),
        (record(2.0, 3.1) + record("0.0", "nan") * 4, "second-step"),
        (("".join(falling(30)) + record("nan", "nan", 9e-6, 1.0) * 4) * 2, "same-step"),
        (record("nan", "nan", 2e-5, 0.1) * 4 + record("nan", "nan", 2e-6, 0.0) * 4, "lower-learning-rate-fails"),
        (REWARDED.format(0.1, 0.01) + REWARDED.format("nan", 900.5) * 3, "policy-ratio"),
        ("User: hello\nAssistant: !!!!!!!!!!!!!!!!!!!!!!!!\n", "token-zero-output"),
    ],
)
def test_a_sign_is_seen(text: str, sign: str, tmp_path: Path) -> None:
    assert sign in signs(tmp_path, text)


@pytest.mark.parametrize(
    "text",
    [
        "".join(falling(60)),
        "".join(ROUND[:10]),  # one epoch, and the beginning of the next
        "".join([*ROUND, record(2.1, 1.2, 1e-5, 4.1)]),  # it began to move
        "".join([*falling(30), *HUGE[:10]]),  # a while, and not throughout
        record(0.002, 0.01) * 40,  # converged
        record(2.5, 1.1) * 40,  # a plateau, printed with one digit
        "".join(falling(30)) + "!" * 40 + " WARNING " + "!" * 40 + "\n" + "!" * 60 + "\n",
        "".join(REWARDED.format(0.1, 0.3) for _ in range(30)),
    ],
)
def test_sound_runs_show_none_of_them(text: str, tmp_path: Path) -> None:
    assert not signs(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "sign", "seen"),
    [
        ("step 1: loss 2.1\nstep 2: loss nan\nstep 3: loss nan\n", "second-step", True),
        ("step 5: loss 2.1\nstep 10: loss nan\nstep 15: loss nan\n", "second-step", False),
        ("".join(falling(10)) + record("nan", "nan", 1e-5, 1.0) * 4, "midway", True),
        ("".join(falling(30)) + record("nan", "nan", 1e-5, 1.0) * 4, "midway", False),
        (record(2.0, 3.1) + record("nan", "nan") * 4, "midway", False),
    ],
)
def test_when_it_began_is_told_by_steps(text: str, sign: str, seen: bool, tmp_path: Path) -> None:
    assert (sign in signs(tmp_path, text)) is seen


DROPPED = "Dropping fully masked examples from train dataset: 100%|####| 168/168 [00:00<00:00, 2538.57 examples/s]\n"
NO_LENGTH = "ValueError: args.max_steps must be set to a positive value if dataloader does not have a length, was -1\n"


def test_a_data_set_of_which_no_row_is_left_is_told_from_a_stream(tmp_path: Path) -> None:
    assert first_three(diagnose(tmp_path, DROPPED + NO_LENGTH))[0] == "all-labels-ignored"
    (crash,) = diagnose(tmp_path, NO_LENGTH).incidents
    assert (crash.symptom, crash.causes) == ("crash", [])
    assert not diagnose(tmp_path, DROPPED + "".join(falling(30))).incidents


def configured(tmp_path: Path, text: str, config: dict[str, object]) -> Diagnosis:
    (tmp_path / "train.log").write_text(text)
    (tmp_path / "config.json").write_text(json.dumps({"output_dir": "out", "learning_rate": 1e-5, **config}))
    return diagnose_logs(tmp_path / "train.log", configs=[tmp_path / "config.json"])


def test_a_configuration_that_does_not_speak_of_it_says_something(tmp_path: Path) -> None:
    lost = record("0.0", "nan") * 6
    assert "comm-overlap-race" in first_three(configured(tmp_path, lost, {"bf16": True, "deepspeed": {
        "zero_optimization": {"stage": 2, "overlap_comm": True}, "bf16": {"enabled": True}}}))  # fmt: skip
    assert "comm-overlap-race" not in first_three(configured(tmp_path, lost, {"bf16": True, "deepspeed": {
        "zero_optimization": {"stage": 2}, "bf16": {"enabled": True}}}))  # fmt: skip
    assert "comm-overlap-race" not in first_three(configured(tmp_path, lost, {"bf16": True}))
    plain = configured(tmp_path, lost, {"bf16": False})
    assert "quant-kernel-hardware" not in first_three(plain)


def test_a_short_log_that_climbs_beyond_guessing_is_no_healthy_one(tmp_path: Path) -> None:
    def told(*losses: float) -> list[str]:
        return [one.symptom for one in diagnose(tmp_path, "".join(record(loss, 1.0) for loss in losses)).incidents]

    assert told(24.4, 290.6, 419.2, 446.9, 470.4, 454.6) == ["divergence"]
    assert told(470.4, 446.9, 419.2, 290.6, 120.5, 24.4) == []
    assert told(24.4, 290.6) == []


BETWEEN = [record(6.2, 3.4), record(6.3, 3.9), record(4.7, 0.0), record(6.2, 3.4), record(4.6, 0.0), record(6.2, 3.7)]


def test_rows_without_a_gradient_between_others_are_rows_without_a_target(tmp_path: Path) -> None:
    found = diagnose(tmp_path, "".join(BETWEEN))
    assert (found.incidents[0].symptom, found.incidents[0].step) == ("zero-gradient", 3)
    assert first_three(found)[0] == "all-labels-ignored"


@pytest.mark.parametrize(
    "text",
    [
        record(6.2, 0.0) * 2 + "".join(falling(30)),  # skipped while the loss scale settles
        "".join(BETWEEN[:4]),  # once
        "".join(BETWEEN).replace("4.7", "0.001").replace("4.6", "0.001"),  # learnt
        "".join(record(6.0 - n / 10, norm) for n, norm in enumerate((0.002, 0.001, 0.0, 0.001, 0.0, 0.001))),  # rounded
        "".join(line.replace("}", ", 'reward': 0.5}") for line in BETWEEN),  # answers with one reward have none
    ],
)
def test_a_gradient_of_zero_that_is_earned(text: str, tmp_path: Path) -> None:
    assert "rows-without-gradient" not in signs(tmp_path, text)


def test_what_was_tried_in_vain_is_told_with_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (
        "TrainingArguments(\nfp16=True,\nmax_grad_norm=0.3,\n)\n"
        + record("0.0", "nan", 1e-8) * 4
        + '  File "gen.py", line 3, in <module>\n    out = model.generate(**inputs, do_sample=False)\n'
    )
    incident = diagnose(tmp_path, text).incidents[0]
    assert incident.causes[0].cause == "fp16-activation-overflow"
    first, second = incident.does_not_help
    tried = "the learning rate was 1e-08 when it failed (train.log:5), max_grad_norm=0.3 (train.log:3)"
    assert first == f"{tried}: the forward has already failed"
    assert second.startswith("do_sample=False (train.log:10): ")
    assert main(["diagnose", str(tmp_path / "train.log")]) == 1
    assert f"does not help {tried}" in " ".join(capsys.readouterr().out.split())
    assert main(["diagnose", str(tmp_path / "train.log"), "--format", "json"]) == 1
    assert json.loads(capsys.readouterr().out)["incidents"][0]["does_not_help"] == [first, second]


def test_a_rate_that_was_lowered_in_vain_is_told(tmp_path: Path) -> None:
    text = "".join(falling(30)) + record("nan", "nan", 2e-5, 1.0) * 4
    text += "".join(falling(30)).replace("1e-05", "1e-06") + record("nan", "nan", 1e-6, 1.0) * 4
    last = diagnose(tmp_path, text).incidents[-1]
    assert any(line.startswith("it failed at learning rate 2e-05 and again at 1e-06") for line in last.does_not_help)


def test_a_traceback_at_the_end_of_a_long_log_is_read(tmp_path: Path) -> None:
    lines = "".join(falling(6000)) + record("nan", "nan") * 4
    found = diagnose(tmp_path, lines + '  File "x.py", line 2\n    h = torch.nan_to_num(h)\n').incidents[-1]
    assert any(f"nan_to_num (train.log:{6000 + 4 + 2})" in line for line in found.does_not_help)


@pytest.mark.parametrize(
    ("norm", "groups"), [(1.0, 1), (1.414, 2), (1.41421, 2), (1.732, 3), (1.7320508, 3), (1.42, None), (0.5, None)]
)
def test_sentinels_of_deepspeed(norm: float, groups: int | None) -> None:
    assert groups_written_as(norm) == groups


def test_what_the_schedule_says(tmp_path: Path) -> None:
    frozen = diagnose(tmp_path, record(2.0, "nan", 1e-7) * 12).incidents[0]
    assert any("stands still over 12 bad rows" in text for text in frozen.seen)
    moving = "".join(record("0.0", "nan", f"{n}e-07", n / 9) for n in range(1, 9))
    assert any("bad updates are applied" in text for text in diagnose(tmp_path, moving).incidents[0].seen)


def test_an_excerpt_does_not_tell_how_the_run_began(tmp_path: Path) -> None:
    start = record(2.0, 1.0, epoch=0.1) + record("nan", "nan", epoch=0.2) * 3
    later = record(2.0, 1.0, epoch=8.1) + record("nan", "nan", epoch=8.2) * 3
    assert any("finite before the first update" in text for text in diagnose(tmp_path, start).incidents[0].seen)
    assert not any("finite before" in text for text in diagnose(tmp_path, later).incidents[0].seen)
