"""A language model held and trained in bfloat16 at a rate whose updates round away."""

from __future__ import annotations

import statistics

import torch

from finitune.diagnosis.recorded import diagnose
from finitune.gym.data import batches
from finitune.gym.loop import Options, prepare, train
from finitune.gym.models import tiny
from finitune.monitor.watch import watch
from finitune.recording import Recording

STEPS = 96


def in_bfloat16(rate=2e-5, steps=STEPS, dtype="bfloat16", seed=0, family="llama"):
    model = tiny(family, hidden=32, vocabulary=128, seed=seed, initializer_range=0.3)
    data = batches(steps, rows=4, length=16, vocabulary=128, seed=seed)
    return prepare(model, data, lambda p: torch.optim.AdamW(p, lr=rate), Options(dtype=dtype))


def healed(run, directory, mode="heal"):
    with watch(run.model, run.optimizer, run_dir=directory, mode=mode):
        losses = [step.loss for step in train(run)]
    return losses, Recording.load(directory)


def learns_as_in_float32(remedy, directory):
    """The run, healed by `remedy` and by nothing else."""
    rate, steps = 2e-4, 220
    alone, right, run = in_bfloat16(rate, steps), in_bfloat16(rate, steps, "float32"), in_bfloat16(rate, steps)
    losses, recording = healed(run, directory)
    last = lambda every: statistics.mean(every[-16:])  # noqa: E731
    stuck, wanted = last([s.loss for s in train(alone)]), last([s.loss for s in train(right)])
    assert last(losses) - wanted < 0.5 * (stuck - wanted)
    events = recording.events("remedy")
    assert [(e["remedy"], e["state"]) for e in events] == [(remedy, "applied"), (remedy, "kept")]
    (one,) = diagnose(directory).incidents
    assert (one.symptom, one.causes[0].cause, one.causes[0].proved) == ("stagnation", "bf16-update-stagnation", True)
    return run
