"""A healthy run is no incident, whatever the scale and the sign of its loss, and however severe its settings are."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.diagnosis.logged.beside import Inputs, args, told

ROWS = 60


def printed(losses: list[float], rate: float = 2e-5, **more: float) -> str:
    return "".join(
        json.dumps({"loss": round(loss, 4), "grad_norm": 1.3, "learning_rate": rate, "epoch": n / ROWS, **more}) + "\n"
        for n, loss in enumerate(losses)
    )


def noise(scale: float, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0.0, scale, ROWS)


def decay(start: float, end: float) -> np.ndarray:
    return end + (start - end) * np.exp(-np.arange(ROWS) / 15)


def healthy(seed: int) -> dict[str, str]:
    """Losses as trainers print them: each is what its objective gives in a run that learns."""
    return {
        "a sum over micro-steps": printed(list(np.linspace(23.0, 19.6, ROWS) + noise(0.2, seed))),
        "a sum over 64 micro-steps": printed(list(64 * (decay(2.3, 1.4) + noise(0.03, seed)))),
        "a sum over tokens": printed(list(4096 * (decay(2.3, 1.4) + noise(0.03, seed)))),
        "several tasks, each with its weight": printed(list(decay(40.0, 22.0) + 5 * np.abs(noise(0.3, seed)) + 10.0)),
        "contrastive, near the logarithm of the batch": printed(list(decay(5.55, 4.9) + noise(0.05, seed))),
        "a reward model, from 0.69 down": printed(list(np.clip(decay(0.6931, 0.35) + noise(0.04, seed), 0.01, None))),
        "preferences, with rewards beside": printed(
            list(np.clip(decay(0.6931, 0.4) + noise(0.04, seed), 0.01, None)), **{"rewards/chosen": 0.2, "reward": 0.1}
        ),
        "policy gradients, of either sign": printed(list(noise(0.03, seed)), reward=0.4, kl=0.01),
        "a likelihood of densities, below zero": printed(list(decay(3.0, -12.0) + noise(0.3, seed))),
        "the negative of a score, falling": printed(list(decay(-1.0, -40.0) + noise(0.5, seed))),
        "squared errors, large at first": printed(list(decay(9e5, 2e4) * np.exp(noise(0.05, seed)))),
    }


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("kind", healthy(0))
def test_a_healthy_loss_of_another_scale_or_sign(kind: str, seed: int, tmp_path: Path) -> None:
    found = told(tmp_path, healthy(seed)[kind])
    assert found.verdict == "healthy", found.incidents[0].message


SEVERE = {
    "a learning rate of 1": {"learning_rate": 1.0},
    "no clipping in float16": {"fp16": True, "max_grad_norm": 0.0, "learning_rate": 5e-3},
    "an adapter of scale 512": {"use_peft": True, "lora_r": 8, "lora_alpha": 4096, "learning_rate": 4e-3},
}


@pytest.mark.parametrize("severe", SEVERE)
@pytest.mark.parametrize("kind", healthy(0))
def test_whether_a_log_is_an_incident_does_not_depend_on_the_settings(kind: str, severe: str, tmp_path: Path) -> None:
    beside: Inputs = args(**SEVERE[severe])(tmp_path)
    found = told(tmp_path, healthy(4)[kind], beside)
    assert not [one for one in found.incidents if one.symptom != "wrong-model"]


@pytest.mark.parametrize("scale", [1.0, 16.0, 4096.0])
def test_a_loss_that_climbs_is_one_at_every_scale(scale: float, tmp_path: Path) -> None:
    climbing = scale * np.concatenate([decay(2.3, 1.4)[:30] + noise(0.03, 5)[:30], np.geomspace(2.0, 60.0, 30)])
    (incident,) = told(tmp_path, printed(list(climbing), rate=5e-3)).incidents
    assert incident.symptom == "divergence"
    assert incident.causes[0].cause == "lr-too-high"
