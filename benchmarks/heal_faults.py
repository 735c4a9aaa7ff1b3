"""Broken runs that a remedy can cure, and the same runs without their fault; `heal.py` trains them.

Each builder takes the model family, a seed, and whether the fault is in. Nothing is fitted to a remedy: the faults are
mechanisms, and what never had them is the run that its user meant.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.optim import SGD, AdamW
from transformers import AttentionInterface

from finitune.gym.bits import with_stuck_exponent
from finitune.gym.data import batches
from finitune.gym.faults import fp16_activation_overflow
from finitune.gym.float16_optimizer import Float16Optimizer
from finitune.gym.loop import Options, Run, prepare, train
from finitune.gym.loss_scale import DynamicLossScaler
from finitune.gym.models import embedding_rows, tiny

STEPS, BEGINS = 40, 6


@dataclass(slots=True, kw_only=True)
class Plain:
    """A loop that has not begun; `steps` yields `length` losses."""

    model: nn.Module
    optimizer: Any
    steps: Iterator[float]
    length: int = STEPS


def untrained_rows(family: str, seed: int, *, faulty: bool) -> Plain:
    """A row of zeros at position 0, under float16 autocast."""
    model = tiny(family, layers=4, initializer_range=0.1, seed=seed)
    with torch.no_grad():
        rows = embedding_rows(model).mul_(0.2)
        if faulty:
            rows[6] = 0
    data = batches(STEPS, seed=seed)
    for batch in data[BEGINS - 1 :]:
        batch["input_ids"][:, 0] = 6
        batch["labels"][:, 0] = 6
    options = Options(dtype="float16-autocast", initial_scale=2.0**14)
    return _run(prepare(model, data, lambda p: AdamW(p, lr=2e-3), options))


def overflowing_module(family: str, seed: int, *, faulty: bool) -> Plain:
    """Channels of one MLP leave float16 where a token appears, in a run of pure float16 with float32 masters."""
    model = tiny(family, seed=seed)
    with torch.no_grad():
        fp16_activation_overflow.plant(model, family)
    data = batches(STEPS, seed=seed)
    for batch in data[BEGINS - 1 :] if faulty else ():
        batch["input_ids"][1, 10:12] = fp16_activation_overflow.TOKEN
        batch["labels"][1, 10:12] = fp16_activation_overflow.TOKEN
    scale = fp16_activation_overflow.SCALE
    options = Options(dtype="float16", scaler=lambda: DynamicLossScaler(scale=scale), initial_scale=scale)
    return _run(prepare(model, data, lambda p: AdamW(p, lr=5e-4), options))


def rate_too_high(family: str, seed: int, *, faulty: bool) -> Plain:
    """The fault of the gym: a hundred times what plain SGD bears, from the first step on."""
    data, rate = batches(STEPS, seed=seed), 100.0 if faulty else 1.0
    return _run(prepare(tiny(family, seed=seed), data, lambda p: SGD(p, lr=rate), Options(clip=None)))


def rate_jumps(family: str, seed: int, *, faulty: bool) -> Plain:
    """From one step on the rate is 2,000 times what the run bears; without the fault it stays."""
    run = prepare(tiny(family, seed=seed), batches(STEPS, seed=seed), lambda p: SGD(p, lr=0.5), Options(clip=None))
    return _run(run, at={BEGINS: lambda: run.optimizer.param_groups[0].update(lr=1000.0)} if faulty else {})


def no_targets(family: str, seed: int, *, faulty: bool) -> Plain:
    """Between the batches come some, three in a row, that have no target left; the mean over none is 0/0."""
    data = batches(STEPS, seed=seed)
    empty = [{**batch, "labels": torch.full_like(batch["labels"], -100)} for batch in batches(9, seed=seed + 1)]
    for place in (BEGINS, 16, 26) if faulty else ():
        data[place:place] = [empty.pop() for _ in range(3)]
    run = _run(prepare(tiny(family, seed=seed), data, lambda p: AdamW(p, lr=1e-3)))
    run.length = len(data)
    return run


def misread_once(family: str, seed: int, *, faulty: bool) -> Plain:
    """Two gradients are read wrongly, each once, as on a failing chip."""
    run = prepare(tiny(family, seed=seed), batches(STEPS, seed=seed), lambda p: AdamW(p, lr=1e-3))
    chance, calls = random.Random(seed), 0
    wrong = chance.sample(range(BEGINS, STEPS), 2) if faulty else []

    def misread(gradient: Tensor) -> Tensor | None:
        nonlocal calls
        calls += 1
        return with_stuck_exponent(gradient) if calls in wrong else None

    [p for p in run.model.parameters() if p.dim() == 2][-2].register_hook(misread)
    return _run(run)


def flipped_weight(family: str, seed: int, *, faulty: bool) -> Plain:
    """One bit of a trained weight flips in memory between two steps."""
    run = prepare(tiny(family, seed=seed), batches(STEPS, seed=seed), lambda p: AdamW(p, lr=1e-3))
    weight = [p for p in run.model.parameters() if p.dim() == 2][-2]

    def flip() -> None:
        weight.data.copy_(with_stuck_exponent(weight))

    return _run(run, at={random.Random(seed).randrange(BEGINS, STEPS - 10): flip} if faulty else {})


def tiny_eps(family: str, seed: int, *, faulty: bool) -> Plain:
    """Weights, gradients and moments in float16, whose zero Adam's default eps is."""
    model = tiny(family, hidden=32, seed=seed).half()
    optimizer = AdamW(model.parameters(), lr=1e-3, eps=1e-8 if faulty else 1e-5)
    return _run(Run(model=model, optimizer=optimizer, batches=batches(STEPS, rows=2, length=8, seed=seed)))


def bad_records(family: str, seed: int, *, faulty: bool) -> Plain:
    """Regression on cached features, some of which are lost, in a plain loop with clipping."""
    generator = torch.Generator().manual_seed(seed)
    model = _regression(family, seed)
    optimizer = AdamW(model.parameters(), lr=1e-2)
    lost = random.Random(seed).sample(range(BEGINS, STEPS), 8) if faulty else ()

    def steps() -> Iterator[float]:
        for step in range(1, STEPS + 1):
            x = torch.randn(16, 8, generator=generator)
            y = x[:, :2] - x[:, 2:4]
            if step in lost:
                x[step % 16] = (math.nan, math.inf, -math.inf)[step % 3]
            loss = mse_loss(model(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            good = [row for row in range(16) if step not in lost or row != step % 16]
            with torch.no_grad():
                yield float(mse_loss(model(x[good]), y[good]))

    return Plain(model=model, optimizer=optimizer, steps=steps())


def outlier_batch(family: str, seed: int, *, faulty: bool) -> Plain:
    """One batch of a regression has targets in another unit, and nothing clips the gradient."""
    generator = torch.Generator().manual_seed(seed)
    model = _regression(family, seed)
    optimizer = SGD(model.parameters(), lr=0.1)
    odd = random.Random(seed).randrange(BEGINS + 6, STEPS - 16) if faulty else 0

    def steps() -> Iterator[float]:
        for step in range(1, STEPS + 1):
            x = torch.randn(16, 8, generator=generator)
            y = (x[:, :2] - x[:, 2:4]) * (1e5 if step == odd else 1.0)
            loss = mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            yield float(loss.detach())

    return Plain(model=model, optimizer=optimizer, steps=steps())


def pads_that_see_nothing(family: str, seed: int, *, faulty: bool) -> Plain:
    """Rows padded on the left under a causal mask, whose pads see no key; without the fault they are padded right."""
    torch.manual_seed(seed)
    model = Attending(weights=family == "multihead")
    optimizer = AdamW(model.parameters(), lr=3e-3)

    def steps() -> Iterator[float]:
        for batch in batches(STEPS, seed=seed, vocabulary=64):
            ids, labels = batch["input_ids"], batch["labels"]
            for row in range(len(ids)):
                shift = 3 * row
                ids[row] = ids[row].roll(shift) if faulty else ids[row]
                pads = slice(0, shift) if faulty else slice(32 - shift, 32)
                ids[row, pads] = 0
                labels[row] = ids[row].masked_fill(ids[row] == 0, -100)
                labels[row, shift if faulty else 0] = -100  # nothing comes before the first token
            loss = cross_entropy(model(ids, ids != 0)[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            yield float(loss.detach())

    return Plain(model=model, optimizer=optimizer, steps=steps())


class Attending(nn.Module):
    """Two layers of attention as people write them: torch's, or a softmax over scores filled with -inf."""

    def __init__(self, *, weights: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(64, 32)
        self.layers = nn.ModuleList(Torchs() if weights else Own() for _ in range(2))
        self.head = nn.Linear(32, 64)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = x + layer(x, mask)
        return self.head(x)


class Torchs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(32)
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        h = self.norm(x)
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        return self.attention(h, h, h, key_padding_mask=~mask, attn_mask=later)[0]


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(32)
        self.q, self.k, self.v = (nn.Linear(32, 32) for _ in range(3))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        h = self.norm(x)
        scores = self.q(h) @ self.k(h).transpose(1, 2) / 32**0.5
        seen = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril() & mask[:, None, :]
        return torch.softmax(scores.masked_fill(~seen, -math.inf), dim=-1) @ self.v(h)


def scores_beyond_float16(family: str, seed: int, *, faulty: bool) -> Plain:
    """Attention logits grow; eager attention stores their raw product in float16, a fused kernel in float32."""
    model = tiny(family, seed=seed, attn_implementation="eager" if faulty else "sdpa")
    options = Options(dtype="float16", scaler=lambda: DynamicLossScaler(scale=2.0**8), initial_scale=2.0**8)
    run = prepare(model, batches(STEPS, seed=seed), lambda p: AdamW(p, lr=5e-4), options)
    return _run(run, at={BEGINS: lambda: _sharpen(run, 600.0)})


def kernel_without_maximum(family: str, seed: int, *, faulty: bool) -> Plain:
    """Attention logits grow; a kernel that users installed computes exp(score) in its backward without the maximum."""
    model = tiny(family, seed=seed, attn_implementation=_Kernel.NAME if faulty else "sdpa")
    run = prepare(model, batches(STEPS, seed=seed), lambda p: AdamW(p, lr=1e-3))
    return _run(run, at={BEGINS: lambda: _sharpen(run, 60.0)})


def _sharpen(run: Run, times: float) -> None:
    with torch.no_grad():
        for name, p in run.model.named_parameters():
            if name.endswith(("q_proj.weight", "k_proj.weight")):
                p.mul_(times)
        for half, master in run.optimizer._pairs() if isinstance(run.optimizer, Float16Optimizer) else ():
            master.copy_(half)


class _Kernel(torch.autograd.Function):
    NAME = "without-maximum"

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.save_for_backward(query, key, value, mask)
        ctx.scale = scale
        return (query @ key.transpose(-1, -2) * scale + mask).softmax(-1) @ value

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        query, key, value, mask = ctx.saved_tensors
        score = (query @ key.transpose(-1, -2) * ctx.scale + mask).exp()
        p = score / score.sum(-1, keepdim=True)
        to_p = gradient @ value.transpose(-1, -2)
        to_score = p * (to_p - (to_p * p).sum(-1, keepdim=True)) * ctx.scale
        return to_score @ key, to_score.transpose(-1, -2) @ query, p.transpose(-1, -2) @ gradient, None, None


def _installed(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, scaling: float, **_: Any  # noqa: ARG001
) -> tuple[Tensor, None]:  # fmt: skip
    key, value = (t.repeat_interleave(query.shape[1] // key.shape[1], 1) for t in (key, value))
    causal = torch.full((query.shape[2], query.shape[2]), -math.inf).triu(1)
    out: Any = _Kernel.apply(query, key, value, causal, scaling)
    return out.transpose(1, 2).contiguous(), None


AttentionInterface.register(_Kernel.NAME, _installed)


def scale_floor_too_high(family: str, seed: int, *, faulty: bool) -> Plain:
    """The loss scale may not fall to where the gradients fit float16, so the scaler ends the run."""
    return _scaled(family, seed, DynamicLossScaler(scale=2.0**24, min_scale=2.0**22 if faulty else 1.0))


def scale_fixed_too_high(family: str, seed: int, *, faulty: bool) -> Plain:
    """A fixed loss scale beyond what the gradients bear: every step is skipped, for ever."""
    return _scaled(family, seed, _Fixed() if faulty else DynamicLossScaler())


@dataclass(slots=True)
class _Fixed:
    """As DeepSpeed keeps a fixed scale."""

    cur_scale: float = 2.0**24

    @property
    def scale(self) -> float:
        return self.cur_scale

    def update(self, *, overflow: bool) -> None:
        pass


def _scaled(family: str, seed: int, scaler: Any) -> Plain:
    options = Options(dtype="float16", scaler=lambda: scaler)
    return _run(prepare(tiny(family, seed=seed), batches(STEPS, seed=seed), lambda p: AdamW(p, lr=1e-3), options))


def outlier_in_moments(family: str, seed: int, *, faulty: bool) -> Plain:
    """One batch weighs 100,000 times what it should; Adam bounds the step, and divides all later ones by the memory."""
    steps, generator = 320, torch.Generator().manual_seed(seed)
    odd = random.Random(seed).randrange(80, 112) if faulty else 0
    model = _regression(family, seed) if family == "tanh" else tiny(family, hidden=32, vocabulary=128, seed=seed)
    data = iter(batches(steps, rows=4, length=16, vocabulary=128, seed=seed))
    optimizer = AdamW(model.parameters(), lr=2e-3)

    def mean_loss() -> Tensor:
        if family != "tanh":
            return model(**next(data)).loss
        x = torch.randn(16, 8, generator=generator)
        return mse_loss(model(x), x[:, :2] - x[:, 2:4])

    def losses() -> Iterator[float]:
        for step in range(1, steps + 1):
            loss = mean_loss()
            (loss * (1e5 if step == odd else 1.0)).backward()
            optimizer.step()
            optimizer.zero_grad()
            yield float(loss.detach())

    return Plain(model=model, optimizer=optimizer, steps=losses(), length=steps)


def embedding_rate_jumps(family: str, seed: int, *, faulty: bool) -> Plain:
    """The parameter group of tied embeddings alone gets 30 times its rate."""
    model, steps = tiny(family, hidden=32, vocabulary=128, seed=seed, tie_word_embeddings=True), 160
    own = embedding_rows(model)
    groups = [{"params": [own]}, {"params": [p for p in model.parameters() if p is not own]}]
    data = batches(steps, rows=4, length=16, vocabulary=128, seed=seed)
    run = prepare(model, data, lambda _: SGD(groups, lr=0.5), Options(clip=None))
    jump = {60: lambda: run.optimizer.param_groups[0].update(lr=15.0)}
    plain = _run(run, at=jump if faulty else {})
    plain.length = steps
    return plain


def updates_round_away(family: str, seed: int, *, faulty: bool) -> Plain:
    """Held and trained in bfloat16, where updates of the usual rate are below half of the distance between numbers."""
    model, steps = tiny(family, hidden=32, vocabulary=128, seed=seed, initializer_range=0.3), 320
    data = batches(steps, rows=4, length=16, vocabulary=128, seed=seed)
    options = Options(dtype="bfloat16" if faulty else "bfloat16-autocast")
    run = _run(prepare(model, data, lambda p: AdamW(p, lr=2e-4), options))
    run.length = steps
    return run


def _regression(family: str, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    between = {"tanh": nn.Tanh(), "gelu": nn.GELU()}[family]
    return nn.Sequential(nn.Linear(8, 32), between, nn.Linear(32, 2))


def _run(run: Run, at: dict[int, Callable[[], Any]] | None = None) -> Plain:
    def steps() -> Iterator[float]:
        for step in train(run):
            yield step.loss
            (at or {}).get(step.step + 1, lambda: None)()

    return Plain(model=run.model, optimizer=run.optimizer, steps=steps())


FAULTS: dict[str, tuple[Callable[..., Plain], tuple[str, ...]]] = {
    "untrained rows": (untrained_rows, ("llama", "mistral")),
    "overflowing module": (overflowing_module, ("llama", "mistral")),
    "rate too high": (rate_too_high, ("llama", "mistral")),
    "rate jumps": (rate_jumps, ("llama", "qwen2")),
    "embedding rate jumps": (embedding_rate_jumps, ("llama", "qwen2")),
    "no targets": (no_targets, ("llama", "gpt2")),
    "misread once": (misread_once, ("mistral", "qwen2")),
    "flipped weight": (flipped_weight, ("llama", "gpt2")),
    "tiny eps": (tiny_eps, ("llama", "gpt2")),
    "bad records": (bad_records, ("tanh", "gelu")),
    "outlier batch": (outlier_batch, ("tanh", "gelu")),
    "pads see nothing": (pads_that_see_nothing, ("multihead", "own")),
    "scores beyond float16": (scores_beyond_float16, ("llama", "qwen2")),
    "kernel without maximum": (kernel_without_maximum, ("llama", "mistral")),
    "scale floor too high": (scale_floor_too_high, ("llama", "gpt2")),
    "scale fixed too high": (scale_fixed_too_high, ("llama", "gpt2")),
    "outlier in moments": (outlier_in_moments, ("tanh", "llama")),
    "updates round away": (updates_round_away, ("llama", "qwen2")),
}
"""With the model families that each is planted in."""
