"""Logs that real frameworks printed (`benchmarks/log_runs`): the verdict and the first cause of each, by its log alone.

They are runs with an even seed, on which the weights were worked out; `make bench-logs` has those that count.
"""

from pathlib import Path

import pytest

from finitune.diagnosis.logged.incidents import diagnose_logs

LOGS = Path(__file__).parents[2] / "data" / "log_runs"
BROKEN = {
    "hf_trainer-some-ignored_fp32_0.log.gz": "all-labels-ignored",
    "hf_trainer-overflowing-channels_fp16_2.log.gz": "fp16-activation-overflow",
    "hf_trainer-half-weights-scaled_fp16_0.log.gz": "fp16-trainable-weights",
    "trl_sft-all-ignored_tokenised_bf16_0.log.gz": "all-labels-ignored",
    "trl_sft-all-ignored_bf16_0.log.gz": "all-labels-ignored",
    "deepspeed_engine-high-rate_zero2_bf16_0.log.gz": "lr-too-high",
    "deepspeed_engine-untrained-token_zero2_fp16_0.log.gz": "untrained-token-embeddings",
    "deepspeed_engine-two-configs_trainer_bf16_0.log.gz": "config-disagreement",
    "deepspeed_engine-overflowing-channels_zero2_fp16_0.log.gz": "fp16-activation-overflow",
    "lightning_trainer-half-weights_half_2.log.gz": "adam-eps-underflow-fp16",
    "lightning_trainer-high-rate_fp32_csv_0.csv": "lr-too-high",
    "lightning_trainer-checkpointed-adapter_bf16_0.log.gz": "gradient-checkpointing",
    "plain-all-ignored_fp32_0.log.gz": "all-labels-ignored",
    "plain-token-outside_fp32_0.log.gz": "tokenizer-vocab-mismatch",
}
HEALTHY = sorted(path.name for path in LOGS.iterdir() if path.name not in BROKEN)


def test_only_runs_that_do_not_count_are_here() -> None:
    seeds = [int(path.name.split(".")[0].rpartition("_")[2]) for path in LOGS.iterdir()]
    assert not any(seed % 2 for seed in seeds)


@pytest.mark.parametrize(("name", "cause"), BROKEN.items())
def test_a_broken_run_is_an_incident_with_its_cause_first(name: str, cause: str) -> None:
    incident = diagnose_logs(LOGS / name).incidents[-1]
    assert incident.causes[0].cause == cause


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_run_is_no_incident(name: str) -> None:
    assert diagnose_logs(LOGS / name).incidents == []


def test_an_epoch_of_zero_that_is_not_the_first_is_not_taken_for_the_beginning(tmp_path: Path) -> None:
    """Rows that were pasted from the middle do not tell of the first step."""
    row = "{{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 1e-05, 'epoch': {}}}\n"
    for name, epochs, begins in (("whole.log", (0.1, 0.2, 0.3), True), ("pasted.log", (0.8, 0.9, 1.0), False)):
        (tmp_path / name).write_text("".join(row.format(epoch) for epoch in epochs), encoding="utf-8")
        (incident,) = diagnose_logs(tmp_path / name).incidents
        assert any("from the first step of the run" in text for text in incident.seen) is begins


def test_a_loss_that_is_lost_and_found_again_speaks_for_a_row_without_a_target(tmp_path: Path) -> None:
    values = ["6.1"] * 8 + ["nan"] + ["6.0"] * 4 + ["nan"] + ["5.9"] * 6
    lines = [f"step {step}: loss {value}, lr 1e-4\n" for step, value in enumerate(values, start=1)]
    (tmp_path / "passes.log").write_text("".join(lines), encoding="utf-8")
    (tmp_path / "stays.log").write_text("".join([*lines[:8], *(line.replace("6.0", "nan") for line in lines[8:13])]))
    passes, stays = (diagnose_logs(tmp_path / name).incidents[0] for name in ("passes.log", "stays.log"))
    assert passes.causes[0].cause == "all-labels-ignored"
    assert stays.causes[0].cause != "all-labels-ignored"


def test_the_first_cause_of_an_error_text_is_one_that_explains_it(tmp_path: Path) -> None:
    """Settings that make other failures likely do not outweigh what the program says."""
    (tmp_path / "train.log").write_text("ValueError: Attempting to unscale FP16 gradients.\n", encoding="utf-8")
    (tmp_path / "args.json").write_text('{"fp16": true, "learning_rate": 0.01, "torch_dtype": "float16"}')
    (incident,) = diagnose_logs(tmp_path / "train.log", configs=[tmp_path / "args.json"]).incidents
    assert incident.causes[0].cause == "fp16-trainable-weights"


def test_a_scale_that_comes_down_from_its_old_start_is_healthy_and_one_that_does_not_stop_is_not(
    tmp_path: Path,
) -> None:
    def log(name: str, bad: int) -> Path:
        norms = ["nan"] * bad + ["1.5"] * 12
        rows = (f"{{'loss': 2.5, 'grad_norm': {norm}, 'learning_rate': 1e-05, 'epoch': {i / 50}}}"
                for i, norm in enumerate(norms, start=1))  # fmt: skip
        (tmp_path / name).write_text("\n".join(rows) + "\n", encoding="utf-8")
        return tmp_path / name

    assert diagnose_logs(log("settles.log", 16)).incidents == []
    assert diagnose_logs(log("falls.log", 30)).incidents
