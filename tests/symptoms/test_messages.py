"""Symptoms that only a message of a log shows: each with a message, and one that it must not be taken for."""

from pathlib import Path

import pytest

import finitune
from finitune.sources.logs.messages import SYMPTOMS

HEALTHY = "".join(f"step {n}: loss {3 - n / 40:.4f}\n" for n in range(40))
MESSAGES = {
    "nonfinite-logits": (
        "RuntimeError: probability tensor contains either `inf`, `nan` or element < 0",
        "step 40: loss 2.0, output: Hello there!!!",
    ),
    "refused": (
        "ValueError: Attempting to unscale FP16 gradients.",
        "UserWarning: gradients of frozen parameters do not require grad",
    ),
    "index-out-of-range": ("IndexError: Target 32000 is out of bounds.", "the range of the index is 0 to 31999"),
    "device-assert": (
        "RuntimeError: CUDA error: device-side assert triggered",
        "no device was given, so nothing to assert",
    ),
    "hardware-error": ("CUDA error: uncorrectable ECC error encountered", "ECC is enabled on 8 of 8 cards"),
    "illegal-access": (
        "RuntimeError: CUDA error: an illegal memory access was encountered",
        "torch.OutOfMemoryError: CUDA out of memory",
    ),
    "nonfinite-weights": (
        "Found NaN or inf values in parameter 'a.lora_A' of module 'LLM'",
        "every parameter of module 'LLM' is finite",
    ),
    "rows-ignored": (
        "WARNING: tokenization mismatch: 69 vs. 70. (ignored)",
        "size mismatch for lm_head.weight, which is ignored",
    ),
    "zero-gradient": (
        "UserWarning: None of the inputs have requires_grad=True. Gradients will be None",
        "requires_grad is set on 128 parameters",
    ),
    "nonfinite-loss": ("Loss is nan, stopping training", "NaN checks are on: the loss is looked at after each step"),
    "nonfinite-gradient": (
        "RuntimeError: Function 'MulBackward0' returned nan values in its 0th output.",
        "anomaly detection is on, which finds nan values",
    ),
    "nonfinite-evaluation": ("validation loss: nan", "validation loss: 2.5, nothing like nan"),
    "loss-scale-collapse": (
        "Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.",
        "loss scale: 65536",
    ),
    "crash": ("torch.OutOfMemoryError: CUDA out of memory", "an OutOfMemoryError was caught, the batch is halved"),
}


def symptoms(text: str, path: Path) -> list[str]:
    (path / "train.log").write_text(HEALTHY + text + "\n")
    return [incident.symptom for incident in finitune.diagnose(path / "train.log").incidents]


def test_every_symptom_that_has_a_message_is_here() -> None:
    assert set(MESSAGES) == set(SYMPTOMS.values())


@pytest.mark.parametrize("symptom", MESSAGES)
def test_fires_on_its_message(symptom: str, tmp_path: Path) -> None:
    assert symptoms(MESSAGES[symptom][0], tmp_path) == [symptom]


@pytest.mark.parametrize("symptom", MESSAGES)
def test_stays_quiet_on_words_that_are_like_it(symptom: str, tmp_path: Path) -> None:
    assert symptom not in symptoms(MESSAGES[symptom][1], tmp_path)


def test_of_several_messages_the_first_is_the_symptom(tmp_path: Path) -> None:
    asserts = "Assertion `srcIndex < srcSelectDimSize` failed.\nCUDA error: device-side assert triggered"
    assert symptoms(asserts, tmp_path) == ["index-out-of-range"]
