"""Every remedy that claims an undo puts the run back bit for bit: weights, optimizer, settings, who computes what."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
from pathlib import Path

import pytest
import torch
from tests.monitor.heal.attention import eager_in_float16, in_own_kernel, sharpened
from tests.monitor.heal.leading import Leading
from tests.monitor.heal.moments import Filled
from tests.monitor.heal.scales import in_float16, short_window
from tests.monitor.heal.small import LanguageModel, Regression, digest
from tests.monitor.heal.stagnant import in_bfloat16

import finitune.monitor.heal.remedies as live_remedies
from finitune.gym.data import batches
from finitune.gym.fault import faults
from finitune.gym.loop import Run, train
from finitune.gym.models import tiny
from finitune.monitor.heal.remedies import rollback_and_skip
from finitune.monitor.precision.float16_on_cpu import float16_on_cpu
from finitune.monitor.process import Stopped
from finitune.monitor.replay import rounding
from finitune.monitor.watch import watch

NAMES = sorted(path.stem for path in Path(live_remedies.__path__[0]).glob("*.py") if path.stem != "__init__")
FOR_ITS_STEP = {"drop_samples", "drop_unsupervised_rows", "recompute_step"}
"""They leave nothing changed but the step that was bad."""


class Gym:
    def __init__(self, run):
        self.run, self.model, self.optimizer = run, run.model, run.optimizer

    def train(self):
        return list(train(self.run))


class Sharpened(Gym):
    def __init__(self, run, times):
        super().__init__(run)
        self.times = times

    def train(self):
        return list(sharpened(self.run, self.times))


def half_adam(_):
    model = tiny("llama", hidden=32).half()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return Gym(Run(model=model, optimizer=optimizer, batches=batches(6, rows=2, length=8)))


def of_gym(fault, family):
    return lambda directory: Gym(faults()[fault].build(family, directory))


PROGRAMS = {
    "clip_gradients": lambda _: Regression("outlier"),
    "dynamic_loss_scale": lambda _: Gym(in_float16(short_window())),
    "float32_trainable_weights": lambda _: Gym(in_bfloat16()),
    "fused_attention": lambda _: Sharpened(eager_in_float16(), 600.0),
    "float32_modules": of_gym("fp16-activation-overflow", "llama"),
    "lower_learning_rate": of_gym("lr-too-high", "llama"),
    "math_attention": lambda _: Sharpened(in_own_kernel(), 60.0),
    "raise_adam_eps": half_adam,
    "reinit_token_rows": of_gym("untrained-token-embeddings", "llama"),
    "reset_moments": lambda _: Filled(),
    "rollback_and_skip": lambda _: Regression("outlier"),
    "restore_weights": lambda _: Regression("flip"),
    "shrink_embedding_updates": lambda _: Leading(),
    "stochastic_rounding": lambda _: Gym(in_bfloat16()),
    "zero_masked_rows": lambda _: LanguageModel(),
}


def test_every_live_remedy_is_here():
    assert set(NAMES) == set(PROGRAMS) | FOR_ITS_STEP


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_undo_restores_the_exact_state(name, tmp_path, monkeypatch):
    module = importlib.import_module(f"finitune.monitor.heal.remedies.{name}")
    if name in ("raise_adam_eps", "stochastic_rounding"):
        monkeypatch.setattr(rounding, "free_bytes", lambda _: 1000)  # it comes after that one
    if name == "clip_gradients":
        monkeypatch.setattr(rollback_and_skip, "MOST", 0)
    own, seen = module.cure, []

    def cure(case):
        found = own(case)
        state = lambda: digest(case.watched.model, case.watched.optimizer(), case.watched.past)  # noqa: E731

        def apply():
            before, discarded = state(), case.watched.discarded
            undo = found.apply()
            seen.append((before, state()))
            assert undo is not None
            undo()
            assert state() == before
            if case.watched.discarded == discarded:  # a step that is to be taken has its gradients already
                undo = found.apply()
                assert state() == seen[-1][1], "what it does depends on nothing but the run"
            return undo

        return dataclasses.replace(found, apply=apply)

    monkeypatch.setattr(module, "cure", cure)
    program = PROGRAMS[name](tmp_path)
    guard = watch(program.model, program.optimizer, run_dir=tmp_path / "run", mode="heal")
    with float16_on_cpu(), contextlib.suppress(Stopped), guard:
        program.train()
    assert seen, "it was applied"
    assert all(before != after for before, after in seen)
