"""Every tiny model trains in every precision."""

from __future__ import annotations

import math
from typing import get_args

import pytest
import torch
from torch.optim import LBFGS, AdamW
from torch.optim.lr_scheduler import LambdaLR

from finitune.gym.data import batches
from finitune.gym.loop import Dtype, Options, prepare, train
from finitune.gym.models import FAMILIES, tiny


def adamw(parameters):
    return AdamW(parameters, lr=3e-3)


@pytest.mark.parametrize("dtype", get_args(Dtype))
@pytest.mark.parametrize("family", FAMILIES)
def test_trains(family, dtype):
    data = batches(1) * 6
    losses = [step.loss for step in train(prepare(tiny(family), data, adamw, Options(dtype=dtype)))]
    assert len(losses) == 6
    assert losses[0] == pytest.approx(math.log(512), abs=0.1)
    assert losses[-1] < losses[0] - 0.1


def test_same_seed_same_model_whatever_the_global_state():
    torch.manual_seed(1)
    first = tiny("llama")
    before = torch.get_rng_state()
    torch.manual_seed(2)
    second = tiny("llama")
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert not torch.equal(tiny("llama", seed=1).lm_head.weight, first.lm_head.weight)
    torch.manual_seed(1)
    assert torch.equal(torch.get_rng_state(), before)


def test_data_depends_on_the_seed_alone_and_leaves_the_special_tokens_out():
    first, again, other = batches(2, seed=3), batches(2, seed=3), batches(2, seed=4)
    assert torch.equal(first[1]["input_ids"], again[1]["input_ids"])
    assert not torch.equal(first[1]["input_ids"], other[1]["input_ids"])
    assert first[0]["input_ids"].min() >= 16
    assert first[0]["input_ids"].max() < 512


def test_accumulation_equals_one_large_batch():
    whole = batches(2, rows=8)
    halves = [{k: v[rows] for k, v in batch.items()} for batch in whole for rows in (slice(4), slice(4, 8))]
    large = [step.loss for step in train(prepare(tiny("llama"), whole, adamw))]
    small = [step.loss for step in train(prepare(tiny("llama"), halves, adamw, Options(accumulate=2)))]
    assert small == pytest.approx(large, rel=1e-5)


def test_a_closure_gives_the_same_steps():
    plain = [step.loss for step in train(prepare(tiny("gpt2"), batches(4), adamw))]
    closed = [step.loss for step in train(prepare(tiny("gpt2"), batches(4), adamw, Options(closure=True)))]
    assert closed == plain
    lbfgs = prepare(tiny("gpt2"), batches(2), lambda p: LBFGS(p, max_iter=2), Options(closure=True, clip=None))
    assert all(math.isfinite(step.loss) for step in train(lbfgs))


@pytest.mark.parametrize("dtype", ["float16", "float16-autocast"])
def test_a_skipped_step_does_not_advance_the_schedule(dtype):
    from finitune.gym.loss_scale import DynamicLossScaler

    options = Options(
        dtype=dtype,
        schedule=lambda optimizer: LambdaLR(optimizer, lambda step: 1.0 + step),
        scaler=lambda: DynamicLossScaler(scale=2.0**40, hysteresis=1),
        initial_scale=2.0**40,
    )
    run = prepare(tiny("llama"), batches(3), adamw, options)
    before = [p.clone() for p in run.model.parameters()]
    list(train(run))
    assert run.optimizer.param_groups[0]["lr"] == 3e-3
    assert all(torch.equal(a, b) for a, b in zip(before, run.model.parameters(), strict=True))
