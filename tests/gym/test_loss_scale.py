"""The scaler does what DeepSpeed's does, and the optimizer around it what a plain optimizer does."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.optim import AdamW

from finitune.gym.data import batches
from finitune.gym.float16_optimizer import Float16Optimizer
from finitune.gym.loss_scale import DynamicLossScaler
from finitune.gym.models import tiny


def test_eighteen_overflows_in_a_row_end_the_run_in_deepspeeds_words(caplog):
    caplog.set_level("INFO", "finitune.gym.loss_scale")
    scaler = DynamicLossScaler()
    for _ in range(17):
        scaler.update(overflow=True)
    assert scaler.scale == 1.0
    with pytest.raises(Exception, match=r"^Current loss scale already at minimum - cannot decrease scale anymore\."):
        scaler.update(overflow=True)
    begin = "[deepspeed] OVERFLOW! Rank 0 Skipping step."
    assert caplog.messages[:2] == [
        f"{begin} Attempted loss scale: 65536, but hysteresis is 2. Reducing hysteresis to 1",
        f"{begin} Attempted loss scale: 65536, reducing to 32768",
    ]
    assert len(caplog.messages) == 17


def test_grows_after_a_window_of_sound_steps_and_refills_the_hysteresis_only_then():
    scaler = DynamicLossScaler(scale=8.0, window=3)
    scaler.update(overflow=True)
    for _ in range(3):
        scaler.update(overflow=False)
    assert (scaler.scale, scaler.patience) == (8.0, 1)
    scaler.update(overflow=False)
    assert (scaler.scale, scaler.patience) == (16.0, 2)


def half_and_full(clip):
    half, full = tiny("llama").half(), tiny("llama").half().float()
    optimizer = Float16Optimizer(half.parameters(), lambda masters: AdamW(masters, lr=1e-3), clip=clip)
    return half, optimizer, full, AdamW(full.parameters(), lr=1e-3)


def test_follows_float32_training_closely():
    half, optimizer, full, plain = half_and_full(clip=0.5)
    for batch in batches(5):
        optimizer.backward(half(**batch).loss)
        optimizer.step()
        optimizer.zero_grad()
        full(**batch).loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(full.parameters(), 0.5)
        plain.step()
        plain.zero_grad()
        assert optimizer.grad_norm == pytest.approx(norm.item(), rel=1e-2)
    before = tiny("llama").half().float()
    moved = lambda model: torch.cat(  # noqa: E731
        [(a.float() - b).flatten() for a, b in zip(model.parameters(), before.parameters(), strict=True)]
    )
    assert torch.cosine_similarity(moved(half), moved(full), dim=0) > 0.95


def test_an_overflow_leaves_weights_masters_and_moments_alone():
    half, optimizer, _, _ = half_and_full(clip=None)
    batch = batches(1)[0]
    optimizer.backward(half(**batch).loss)
    optimizer.step()
    kept = [p.clone() for p in half.parameters()]
    state = {k: v.clone() for k, v in optimizer.inner.state[optimizer.inner.param_groups[0]["params"][0]].items()}
    next(half.parameters()).grad[0, 0] = float("inf")
    optimizer.step()
    assert optimizer.overflow
    assert optimizer.grad_norm == float("inf")
    assert all(torch.equal(a, b) for a, b in zip(kept, half.parameters(), strict=True))
    after = optimizer.inner.state[optimizer.inner.param_groups[0]["params"][0]]
    assert all(torch.equal(state[k], after[k]) for k in state)


def test_state_can_be_saved_and_loaded():
    half, optimizer, _, _ = half_and_full(clip=1.0)
    data = batches(4)

    def steps(batches_):
        for batch in batches_:
            optimizer.backward(half(**batch).loss)
            optimizer.step()
            optimizer.zero_grad()

    steps(data[:2])
    saved = copy.deepcopy(optimizer.state_dict())
    steps(data[2:])
    expected = [p.clone() for p in half.parameters()]
    optimizer.load_state_dict(saved)
    steps(data[2:])
    assert all(torch.equal(a, b) for a, b in zip(expected, half.parameters(), strict=True))
