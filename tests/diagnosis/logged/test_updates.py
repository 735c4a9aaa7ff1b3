"""What the rows after a bad one say: whether its update was taken, what stays lost, and what only follows from it."""

from __future__ import annotations

from pathlib import Path

from finitune.diagnosis.logged.incidents import diagnosis_of
from finitune.finding import Incident
from finitune.sources import logs

SAMPLING = "RuntimeError: probability tensor contains either `inf`, `nan` or element < 0\n"


def record(loss: object, norm: object, rate: float = 1e-5, epoch: float = 0.1) -> str:
    return f"{{'loss': {loss}, 'grad_norm': {norm}, 'learning_rate': {rate}, 'epoch': {epoch}}}\n"


def incident(tmp_path: Path, text: str) -> Incident:
    path = tmp_path / "train.log"
    path.write_text(text)
    reading = logs.read(path)
    return diagnosis_of(reading, reading.facts).incidents[-1]


def bits(found: Incident, cause: str, words: str) -> list[float]:
    return [term.bits for one in found.causes if one.cause == cause for term in one.evidence if words in term.text]


def falling(rows: int) -> str:
    return "".join(record(round(3.0 - 0.02 * n, 3), 1.2, epoch=0.01 * n) for n in range(1, rows + 1))


def test_losses_that_stay_finite_after_a_bad_gradient_show_that_its_update_was_skipped(tmp_path: Path) -> None:
    skipped = "".join(record(3.0, "nan", n * 1e-6, 0.1 * n) for n in range(1, 4))
    lost = "".join(record("0.0", "nan", n * 1e-6, 0.1 * n) for n in range(4, 12))
    found = incident(tmp_path, skipped + lost)
    assert any("the update was skipped" in line for line in found.seen)
    assert not any("bad updates are applied" in line for line in found.seen)
    assert any("the forward itself is not finite" in line for line in found.seen)
    assert found.causes[0].cause == "fp16-activation-overflow"
    assert bits(found, "fp16-activation-overflow", "the forward itself is not finite") == [3.0]


def test_a_loss_that_is_lost_right_after_the_gradient_shows_no_skip(tmp_path: Path) -> None:
    lost = "".join(record("0.0", "nan", n * 1e-6, 0.1 * n) for n in range(2, 12))
    found = incident(tmp_path, record(3.0, "nan", 1e-6) + lost)
    assert not any("the update was skipped" in line for line in found.seen)
    assert any("bad updates are applied" in line for line in found.seen)


def test_a_norm_that_is_lost_beside_a_hidden_loss_speaks_against_ignored_labels(tmp_path: Path) -> None:
    """The gradient of a mean over no target is exactly 0."""
    hidden = incident(tmp_path, "".join(record("0.0", "nan", epoch=0.1 * n) for n in range(1, 9)))
    assert "all-labels-ignored" not in [one.cause for one in hidden.causes[:2]]
    zero = incident(tmp_path, "".join(record("0.0", "0.0", epoch=0.1 * n) for n in range(1, 9)))
    assert zero.causes[0].cause == "all-labels-ignored"


def test_a_loss_that_never_comes_back_speaks_against_ignored_labels(tmp_path: Path) -> None:
    stays = incident(tmp_path, falling(36) + "".join(record("nan", "nan", epoch=1.0 + n) for n in range(12)))
    assert any("to the end" in line for line in stays.seen)
    assert stays.causes[0].cause != "all-labels-ignored"
    passes = incident(tmp_path, falling(36) + (record("nan", "0.0") + record(2.2, 1.1)) * 6)
    assert not any("to the end" in line for line in passes.seen)
    assert passes.causes[0].cause == "all-labels-ignored"


def test_a_model_that_fails_after_its_training_was_lost_was_saved_so(tmp_path: Path) -> None:
    lost = "".join(f"step {n}: loss nan, grad_norm nan, lr {n}e-6\n" for n in range(1, 9))
    found = incident(tmp_path, lost + SAMPLING)
    assert found.causes[0].cause == "nan-saved-in-checkpoint"
    assert not bits(found, "fp16-activation-overflow", "probability tensor")
    healthy = "".join(f"step {n}: loss {3 - 0.1 * n:.2f}, grad_norm 1.0, lr {n}e-6\n" for n in range(1, 9))
    assert bits(incident(tmp_path, healthy + SAMPLING), "fp16-activation-overflow", "probability tensor") == [3.0]


def test_a_printed_rate_that_recipes_have_speaks_against_the_learning_rate(tmp_path: Path) -> None:
    climbing = [2.0] * 8 + [5.0, 9.0, 20.0, 41.0, 80.0, 81.0, 85.0, 90.0]
    for rate, size in ((2e-4, -1.0), (2e-3, None)):
        text = "".join(record(loss, 1.0, rate, 0.1 * n) for n, loss in enumerate(climbing, start=1))
        found = incident(tmp_path, text)
        assert found.causes[0].cause == "lr-too-high"
        assert bits(found, "lr-too-high", "a learning rate of") == ([size] if size else [])
