"""One training and the numbers of each of its steps, measured as `finitune.signals` defines them.

The loop is the benchmark's own: it knows neither the monitor nor the symptoms. A fault is a change of the fields of a
`Training` after some step.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from finitune.series import Series

Batch = dict[str, Tensor]

SAMPLE, SCHEDULE = 16, 64
"""Steps between two measurements of the update, and of counts and peaks."""
ELEMENTS = 65_536
HASHED = 64


@dataclass
class Training:
    """What a loop needs; `draw(step)` gives the batch of a step from its number alone, `rate(step)` its rate."""

    model: nn.Module
    optimizer: Optimizer
    draw: Callable[[int], Batch]
    loss: Callable[[nn.Module, Batch], Tensor]
    rate: Callable[[int], float]
    clip: float | None = 1.0
    scaler: torch.amp.GradScaler | None = None
    autocast: torch.dtype | None = None
    micro_batches: int = 1
    embedding: nn.Embedding | None = None
    replica: nn.Module | None = None
    """A second copy that takes the same updates, as data-parallel ranks do."""
    spoil: Callable[[Batch, int], Batch] = field(default=lambda batch, _step: batch)
    zeroes_gradients: bool = True
    divides_by_micro_batches: bool = True
    rng: Tensor = field(default_factory=torch.get_rng_state)
    last_batch: tuple[float, ...] = ()
    done: int = 0


def fork(training: Training) -> Training:
    """A copy that shares no tensor with `training` and continues at the same step with the same random numbers."""
    return copy.deepcopy(training)


def train(training: Training, steps: int, signals: dict[str, Series]) -> None:
    """Take `steps` more steps and add what was measured to `signals`."""
    torch.set_rng_state(training.rng)
    training.model.train()
    for _ in range(steps):
        training.done += 1
        _step(training, signals)
    training.rng = torch.get_rng_state()


def _step(training: Training, signals: dict[str, Series]) -> None:
    step, model, optimizer, scaler = training.done, training.model, training.optimizer, training.scaler

    def record(name: str, value: float) -> None:
        signals.setdefault(name, Series()).add(step, float(value))

    for group in optimizer.param_groups:
        group["lr"] = training.rate(step) * group.get("share", 1.0)
    record("lr", max(group["lr"] for group in optimizer.param_groups))
    if scaler is not None:
        record("loss_scale", scaler.get_scale())
    peaks = _Peaks(training.model) if step % SCHEDULE == 0 else None
    trained = [p for p in model.parameters() if p.requires_grad]
    record("kept_gradients", sum(p.grad is not None and bool(p.grad.any()) for p in trained) / len(trained))
    total, seen, targets = 0.0, (), 0
    for micro in range(training.micro_batches):
        batch = training.spoil(training.draw(step * training.micro_batches + micro), step)
        seen += _fingerprint(batch)
        targets += int((batch["labels"] != -100).sum()) if "labels" in batch else -1
        with torch.autocast("cpu", training.autocast) if training.autocast else nullcontext():
            loss = training.loss(model, batch)
        total += loss.item() / training.micro_batches
        if training.divides_by_micro_batches:
            loss = loss / training.micro_batches
        (scaler.scale(loss) if scaler is not None else loss).backward()
    record("loss", total if training.divides_by_micro_batches else total * training.micro_batches)
    record("repeated_batch", seen == training.last_batch)
    training.last_batch = seen
    if peaks is not None:
        for name, value in peaks.finish().items():
            record(name, value)
        if targets >= 0:
            record("targets", targets)
    if scaler is not None:
        scaler.unscale_(optimizer)
    graded = [p for p in trained if p.grad is not None]
    norms = torch.stack([p.grad.double().norm() for p in graded]) if graded else torch.zeros(1)
    norm = float(norms.norm())
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    absent = sum(id(p) in held and p.grad is None for p in model.parameters())
    zeros = int((norms == 0).sum()) if graded else 0
    record("grad_norm", norm)
    record("zero_gradients", (zeros + absent) / max(1, len(graded) + absent))
    if training.clip is not None:
        nn.utils.clip_grad_norm_(graded, training.clip)
        record("clip_factor", min(1.0, training.clip / (norm + 1e-6)) if math.isfinite(norm) else norm)
    before = _Sampled(trained) if step % SAMPLE == 0 else None
    frozen = _frozen(model) if step % SCHEDULE == 0 else None
    if training.replica is not None:
        _follow(training)
    if scaler is None:
        optimizer.step()
        record("skipped", 0.0)
    else:
        scaler.step(optimizer)
        scaler.update()
        record("skipped", not math.isfinite(norm))
    if before is not None:
        for name, value in before.changes().items():
            record(name, value)
    if frozen is not None:
        record("frozen_moved", sum(not torch.equal(p, old) for p, old in frozen))
    if training.replica is not None and step % 50 == 0:
        pairs = list(zip(model.parameters(), training.replica.parameters(), strict=True))
        apart = math.sqrt(sum(float((p - q).pow(2).sum()) for p, q in pairs))
        record("replica_error", apart / math.sqrt(sum(float(p.pow(2).sum()) for p, _ in pairs)))
    if training.embedding is not None and step % SCHEDULE == 0:
        rows = training.embedding.weight.detach().float().norm(dim=1)
        record("embedding_outlier", rows.max() / rows.median())
    if training.zeroes_gradients:
        for p in model.parameters():
            p.grad = None


def _fingerprint(batch: Batch) -> tuple[float, ...]:
    return tuple(x for tensor in batch.values() for x in tensor.reshape(-1)[:HASHED].tolist())


class _Sampled:
    """Samples of the trained tensors before the update, and what it did to them."""

    def __init__(self, trained: list[nn.Parameter]) -> None:
        each = max(1, ELEMENTS // max(1, len(trained)))
        self.old = []
        for p in trained:
            if p.grad is None:
                continue
            stride = max(1, p.numel() // each) | 1
            self.old.append((p, stride, p.detach().reshape(-1)[::stride].clone(), p.grad.reshape(-1)[::stride] != 0))

    def changes(self) -> Mapping[str, float]:
        moved, asked, still, ratios = 0, 0, 0, []
        for p, stride, old, has_gradient in self.old:
            new = p.detach().reshape(-1)[::stride]
            if not has_gradient.any():
                continue
            changed = (new != old) & has_gradient
            moved += int(changed.sum())
            asked += int(has_gradient.sum())
            still += p.dtype == torch.float32 and not bool((new != old).any())
            size = float(old.float().norm())
            ratios.append(float((new.float() - old.float()).norm()) / size if size else math.nan)
        if not asked:
            return {}
        known = sorted(ratio for ratio in ratios if math.isfinite(ratio))
        out = {"moved": moved / asked, "unmoved_tensors": float(still)}
        return out | ({"update_ratio": known[len(known) // 2]} if known else {})


def _frozen(model: nn.Module) -> list[tuple[nn.Parameter, Tensor]]:
    return [(p, p.detach().clone()) for p in model.parameters() if not p.requires_grad]


@torch.no_grad()
def _follow(training: Training) -> None:
    """The replica takes the same plain update of SGD, before the model's own optimizer takes it."""
    assert training.replica is not None
    rate = training.optimizer.param_groups[0]["lr"]
    for p, q in zip(training.model.parameters(), training.replica.parameters(), strict=True):
        if p.grad is not None:
            q.add_(p.grad, alpha=-rate)


class _Peaks:
    """The largest magnitude that a module puts out, and of query times key in attention layers."""

    def __init__(self, model: nn.Module) -> None:
        self.peak, self.logit, self.query = 0.0, None, None
        self.hooks = [
            module.register_forward_hook(self._hook(name.rsplit(".", 1)[-1]))
            for name, module in model.named_modules()
            if not list(module.children())
        ]
        configs = (module.config for module in model.modules() if hasattr(module, "config"))
        self.heads = getattr(next(configs, None), "num_attention_heads", 1)

    def _hook(self, name: str) -> Callable[..., None]:
        def hook(_module: nn.Module, _args: Any, output: Any) -> None:
            if isinstance(output, Tensor) and output.is_floating_point():
                self.peak = max(self.peak, float(output.detach().abs().max()))
                if name in ("q_proj", "k_proj", "c_attn"):
                    self._product(name, output.detach().float())

        return hook

    def _product(self, name: str, output: Tensor) -> None:
        if name == "q_proj":
            self.query = output
            return
        query, key = output.chunk(3, dim=-1)[:2] if name == "c_attn" else (self.query, output)
        size = query.shape[-1] // self.heads
        query = query.unflatten(-1, (-1, size)).transpose(1, 2)
        key = key.unflatten(-1, (-1, size)).transpose(1, 2)
        key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
        largest = float((query @ key.transpose(-1, -2)).abs().max()) / math.sqrt(size)
        self.logit = max(self.logit or 0.0, largest)

    def finish(self) -> Mapping[str, float]:
        for hook in self.hooks:
            hook.remove()
        return {"activation_peak": self.peak} | ({} if self.logit is None else {"attention_logit": self.logit})
