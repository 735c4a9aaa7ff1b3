"""Diagnosis from logs alone, and with facts: founding incidents, look-alikes, healthy runs, and no trust in a log."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from finitune.facts import Facts, Parallel, Precision
from finitune.finding import Diagnosis, UnreadableInput, as_json
from finitune.postmortem import diagnose_logs, diagnosis_of
from finitune.postmortem.lookalikes import FATAL
from finitune.postmortem.signs import MESSAGES, groups_printed
from finitune.reports.terminal import print_diagnosis
from finitune.sources import logs

ROOT = Path(__file__).parents[2]
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
FOUNDING = {
    "yi": (ladder(16, 0) + MINIMUM, "untrained-token-embeddings"),
    "medicalgpt, deepspeed 0.12.5": (
        record(1.9, 2.1) + record(1.8, 1.0) + record("0.0", 1.0, 2e-6) + record("0.0", 1.0, 1.9e-6),
        "comm-overlap-race",
    ),
    "medicalgpt, two groups": (record(1.9, 2.1) + record("0.0", 1.414, 2e-6) * 3, "comm-overlap-race"),
    "ludwig": (STOPPED, "unmasked-padding"),
    "unsloth": (record(1.7, "nan", 2e-4) + record(1.8, "nan", 2e-4) * 5, "fp16-activation-overflow"),
    "omnilmm": (
        "RuntimeError: probability tensor contains either `inf`, `nan` or element < 0\n",
        "fp16-activation-overflow",
    ),
}


@pytest.mark.parametrize("incident", FOUNDING)
def test_founding_incidents_without_any_config(incident: str, tmp_path: Path) -> None:
    text, cause = FOUNDING[incident]
    found = diagnose(tmp_path, text)
    assert cause in first_three(found)
    assert found.incidents[0].next_check


@pytest.mark.parametrize(
    ("log", "cause", "line"),
    [
        ("yi-zero2.log", "untrained-token-embeddings", 18),
        ("medicalgpt-bf16-zero2.log", "comm-overlap-race", 9),
        ("ludwig-batch-4.log", "unmasked-padding", 5),
        ("unsloth-unpacked.log", "fp16-activation-overflow", 1),
        ("omnilmm-tuned.log", "fp16-activation-overflow", 1),
        ("trainer-rate-3.log", "lr-too-high", 40),
        ("trainer-all-ignored.log", "all-labels-ignored", 1),
        ("trainer-eval-ignored.log", "all-labels-ignored", 11),
    ],
)
def test_real_broken_runs(log: str, cause: str, line: int) -> None:
    found = diagnose_logs(REAL / log)
    assert cause in first_three(found)
    assert f"({log}:{line})" in found.incidents[0].message


EXAMPLES = ROOT / "examples"


@pytest.mark.parametrize(
    ("log", "inputs", "cause"),
    [
        (
            "yi-zero2.log",
            {"configs": ["yi/run_sft_Yi.sh"], "model": "yi/model", "data": "yi/train.jsonl", "gpu": "V100"},
            "untrained-token-embeddings",
        ),
        (
            "medicalgpt-bf16-zero2.log",
            {"configs": ["medicalgpt/run_sft.sh"], "requirements": "medicalgpt/requirements.txt"},
            "comm-overlap-race",
        ),
        (
            "ludwig-batch-4.log",
            {"configs": ["ludwig/model.yaml"], "model": "ludwig/model", "data": "ludwig/train.csv", "gpu": "V100"},
            "unmasked-padding",
        ),
        (
            "unsloth-unpacked.log", {"configs": ["unsloth/sft_config.yaml"], "model": "unsloth/model", "gpu": "T4"},
            "fp16-activation-overflow",
        ),
        (
            "omnilmm-tuned.log",
            {"configs": ["omnilmm/finetune_lora.sh"], "model": "omnilmm/model", "gpu": "V100"},
            "fp16-activation-overflow",
        ),
    ],
)  # fmt: skip
def test_founding_incidents_with_their_configs(log: str, inputs: dict[str, object], cause: str) -> None:
    def there(value: object) -> object:
        return [there(one) for one in value] if isinstance(value, list) else str(EXAMPLES / str(value))

    given_inputs = {key: value if key == "gpu" else there(value) for key, value in inputs.items()}
    found = diagnose_logs(REAL / log, **given_inputs)  # pyright: ignore[reportArgumentType]
    assert first_three(found)[0] == cause


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
    (record("0.0", "nan", 1e-6) * 6, BRAIN, "comm-overlap-race", "fp16-activation-overflow"),
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
    (SUDDEN, None, "comm-overlap-race", "corrupt-checkpoint"),
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


@pytest.mark.parametrize(
    ("norm", "groups"), [(1.0, 1), (1.414, 2), (1.41421, 2), (1.732, 3), (1.7320508, 3), (1.42, None), (0.5, None)]
)
def test_sentinels_of_deepspeed(norm: float, groups: int | None) -> None:
    assert groups_printed(norm) == groups


def test_what_the_schedule_says(tmp_path: Path) -> None:
    frozen = diagnose(tmp_path, record(2.0, "nan", 1e-7) * 12).incidents[0]
    assert any("stands still over 12 bad rows" in text for text in frozen.seen)
    moving = "".join(record("0.0", "nan", f"{n}e-07", n / 9) for n in range(1, 9))
    assert any("bad updates are applied" in text for text in diagnose(tmp_path, moving).incidents[0].seen)


def test_an_excerpt_does_not_tell_how_the_run_began(tmp_path: Path) -> None:
    start = record(2.0, 1.0, epoch=0.1) + record("nan", "nan", epoch=0.2) * 3
    later = record(2.0, 1.0, epoch=8.1) + record("nan", "nan", epoch=8.2) * 3
    assert any("1 sound row before it" in text for text in diagnose(tmp_path, start).incidents[0].seen)
    assert not any("1 sound row before it" in text for text in diagnose(tmp_path, later).incidents[0].seen)


def test_evidence_names_its_line(tmp_path: Path) -> None:
    found = diagnose(tmp_path, "".join(falling(117)) + record("0.0", "nan", 1e-5, 2.0) * 4).incidents[0]
    assert "(train.log:118)" in found.message
    assert any("train.log:118" in term.text for term in found.causes[0].evidence)
    assert (found.step, found.last_good) == (118, 117)


def test_tables_name_what_exists() -> None:
    assert set(FATAL) <= MESSAGES


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
