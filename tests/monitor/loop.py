"""A training loop as a user writes it, with one bad step, and what every bad step must leave behind: nothing."""

from __future__ import annotations

import contextlib
import copy
import math
import re
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import clip_grad_norm_ as clip_imported_early

from finitune.monitor.watch import watch
from finitune.recording import Recording

BAD = 3
VALUES = [math.nan, math.inf, -math.inf]


def net(dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4)).to(dtype)


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=1e-2)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=1e-2, momentum=0.9)


@dataclass
class Loop:
    """A training loop as a user writes it; step `bad` (and the `times` - 1 after it) goes wrong by `fault`."""

    make: Any = adamw
    dtype: torch.dtype = torch.float32
    clip: Any = None
    accumulate: int = 1
    closure: bool = False
    scaled: bool = False
    fault: str = "hook"
    value: float = math.nan
    bad: int = BAD
    times: int = 1
    losses: list = field(default_factory=list)

    def __post_init__(self):
        self.model = net(self.dtype)
        self.optimizer = self.make(self.model.parameters())
        self.scaler = torch.amp.GradScaler("cpu", init_scale=256.0) if self.scaled else None
        self.taken = 0
        victim = self.model[2].weight
        if self.fault == "hook":
            victim.register_hook(self._spoil)
        elif self.fault == "late hook":
            victim.register_post_accumulate_grad_hook(self._write_late)
        elif self.fault == "module hook":
            self.model[0].register_full_backward_hook(lambda m, gi, go: None)
            self.model[2].register_full_backward_hook(lambda m, gi, go: tuple(self._spoil(g) for g in gi))

    @property
    def faulty(self):
        return self.bad <= self.taken < self.bad + self.times

    def _spoil(self, gradient):
        return self._write(gradient.clone()) if self.faulty else gradient

    def _write(self, gradient):
        if self.faulty:
            gradient.view(-1)[3] = self.value
        return gradient

    def _write_late(self, parameter):
        self._write(parameter.grad)

    def step(self):
        self.taken += 1
        if self.closure:
            self.losses.append(float(self.optimizer.step(self._closure)))
            return
        loss = self._forward_backward()
        if self.fault == "by hand" and self.faulty:
            self._write(self.model[2].weight.grad)
        if self.scaler is None:
            self._clip()
            self.optimizer.step()
        else:
            self.scaler.unscale_(self.optimizer)
            self._clip()
            self.scaler.step(self.optimizer)
            self.scaler.update()
        self.optimizer.zero_grad()
        self.losses.append(loss)

    def _closure(self):
        self.optimizer.zero_grad()
        loss = self._forward_backward()
        self._clip()
        return loss

    def _clip(self):
        if self.clip is not None:
            self.clip(self.model.parameters(), 0.1)

    def _forward_backward(self):
        total = 0.0
        for micro in range(self.accumulate):
            x, y = batch(self.taken, micro)
            autocast = torch.autocast("cpu", torch.float16) if self.scaled else contextlib.nullcontext()
            with autocast:
                loss = self._loss(self.model(x.to(self.dtype)), y)
            loss = loss / self.accumulate
            (loss if self.scaler is None else self.scaler.scale(loss)).backward()
            total += float(loss.detach())
        return total

    def _loss(self, out, y):
        if self.fault == "labels ignored":
            labels = torch.full_like(y, -100) if self.faulty else y
            return F.cross_entropy(out.float(), labels, ignore_index=-100)
        loss = F.cross_entropy(out.float(), y)
        if self.fault == "detached loss" and self.faulty:
            loss = loss + torch.tensor(self.value)
        if self.fault == "loss" and self.faulty:
            loss = loss * torch.tensor(self.value)
        return loss


def batch(step, micro=0):
    generator = torch.Generator().manual_seed(17 * step + micro)
    return torch.randn(8, 6, generator=generator), torch.randint(4, (8,), generator=generator)


def state(loop):
    """Weights and the complete optimizer state, copied."""
    return copy.deepcopy({"weights": loop.model.state_dict(), "optimizer": loop.optimizer.state_dict()})


def same(a, b) -> bool:
    """Bit for bit, NaN included."""
    if isinstance(a, torch.Tensor):
        integer = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
        return (
            isinstance(b, torch.Tensor)
            and a.dtype == b.dtype
            and torch.equal(a.contiguous().view(-1).view(integer), b.contiguous().view(-1).view(integer))
        )
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and (a == b or a is b or (a != a and b != b))


END = re.compile(r"finitune: (rank \d+: )?\d+ steps?, all finite; recorded in .*")


def without_the_end(err: str) -> str:
    """What was said but for the line at the end of a healthy run."""
    return "".join(line for line in err.splitlines(keepends=True) if not END.fullmatch(line.strip()))


def finite(loop):
    return all(p.isfinite().all() for p in loop.model.parameters())


SETUPS = {
    "float32": {},
    "bfloat16": {"dtype": torch.bfloat16},
    "float16": {"dtype": torch.float16, "make": sgd},
    "foreach": {"make": lambda p: torch.optim.AdamW(p, lr=1e-2, foreach=True)},
    "fused": {"make": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True)},
    "adafactor": {"make": lambda p: torch.optim.Adafactor(p, lr=1e-2)},
    "scaler": {"scaled": True},
    "scaler and clip": {"scaled": True, "clip": torch.nn.utils.clip_grad_norm_},
    "accumulate": {"accumulate": 3},
    "clip": {"clip": lambda *args: torch.nn.utils.clip_grad_norm_(*args)},
    "clip imported early": {"clip": clip_imported_early},
    "bfloat16 clip accumulate": {"dtype": torch.bfloat16, "clip": clip_imported_early, "accumulate": 2},
    "closure": {"closure": True},
    "closure and clip": {"closure": True, "clip": clip_imported_early},
    "closure sgd": {"closure": True, "make": sgd},
    "closure lbfgs": {"closure": True, "make": lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=3)},
    "closure lbfgs search": {
        "closure": True,
        "make": lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=3, line_search_fn="strong_wolfe"),
    },
}


def discards_one_step(loop, run_dir):
    """Everything this file asks of a bad step."""
    with watch(loop.model, loop.optimizer, run_dir=run_dir) as watched:
        for _ in range(loop.bad - 1):
            loop.step()
        before = state(loop)
        loop.step()
        after = state(loop)
        assert same(before, after)
        for _ in range(2):
            loop.step()
        assert watched.step == loop.taken
    assert finite(loop)
    assert not same(after["weights"], state(loop)["weights"])
    recording = Recording.load(run_dir)
    assert [event["step"] for event in recording.events("incident")] == [loop.bad]
    assert not recording.events("broken")
    skipped = recording.signals["skipped"]
    assert skipped.values.tolist() == [float(step == loop.bad) for step in skipped.steps.tolist()]
    assert recording.signals["grad_norm"].steps.tolist() == list(range(1, loop.taken + 1))
    return recording


def recorded(tmp_path, model, loss_of):
    """The recording of a loop with the losses `loss_of(step)`, of which that of step 3 is bad."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with watch(model, optimizer, run_dir=tmp_path / "run"):
        for step in range(1, 5):
            optimizer.zero_grad()
            loss_of(step).backward()
            optimizer.step()
    return Recording.load(tmp_path / "run")


def origin(tmp_path, model, loss_of):
    """The first that is named in that loop."""
    event, *_ = recorded(tmp_path, model, loss_of).events("origin")
    return event["origin"]
