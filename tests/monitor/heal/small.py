"""Small programs that a remedy heals; `state_of` is all that healing may change in them."""

from __future__ import annotations

import hashlib
import math

import torch
import torch.nn.functional as F
from torch import nn

from finitune.gym.bits import with_stuck_exponent
from finitune.monitor.replay.rerun import Setting
from finitune.monitor.watch import watch

STEPS, BAD = 24, 10


def digest(model, optimizer, past=None):
    """A hash of weights, buffers, optimizer state, its settings and who computes what, bit for bit."""
    whole = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        whole.update(name.encode() + tensor.detach().contiguous().view(torch.uint8).numpy().tobytes())
    inner = getattr(optimizer, "inner", optimizer)
    for each in {id(o): o for o in (optimizer, inner)}.values():
        for group in each.param_groups:
            whole.update(repr([(key, value) for key, value in sorted(group.items()) if key != "params"]).encode())
            for p in group["params"]:
                whole.update(p.detach().contiguous().view(torch.uint8).numpy().tobytes())
                for name, value in sorted(each.state.get(p, {}).items()):
                    bits = value.detach().reshape(-1).view(torch.uint8).numpy().tobytes()
                    whole.update(name.encode() + (bits if isinstance(value, torch.Tensor) else repr(value).encode()))
    scaler = getattr(optimizer, "scaler", None)
    hooks = [
        *getattr(optimizer, "_optimizer_step_pre_hooks", ()),
        *getattr(optimizer, "_optimizer_step_post_hooks", ()),
    ]
    whole.update(repr((scaler, len(hooks))).encode())
    own = [name for name, module in model.named_modules() if "forward" in vars(module)]
    configs = [getattr(module, "config", None) for module in model.modules()]
    own += [kernel for one in configs if (kernel := getattr(one, "_attn_implementation", None)) is not None]
    whole.update(repr((own, None if past is None else (past.factor, past.bound, past.skips))).encode())
    return whole.hexdigest()


def taken_again(loop, directory):
    """What the loop's last step left, before and after it is taken again. The remedy bounds its updates."""
    with watch(loop.model, loop.optimizer, run_dir=directory, mode="heal"):
        loop.train()
        (watched,) = list(watch(loop.model, loop.optimizer)._optimizers)
        past, after = watched.past, digest(loop.model, loop.optimizer)
    assert past.bound is not None
    last = past.steps[-1].capture
    past.take_again(Setting(model=loop.model, optimizer=loop.optimizer, capture=last, past=past), 1.0)
    return after, digest(loop.model, loop.optimizer)


class Regression:
    """A plain loop; at step BAD a gradient is misread, a weight flips in memory, or targets are in another unit."""

    def __init__(self, fault="", steps=STEPS, clip=None, bad=BAD):
        torch.manual_seed(0)
        self.clip, self.bad = clip, bad
        self.model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        if fault.startswith("outlier"):
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.losses = []
        self.fault, self.steps, self.step, self.misread, self.chance = fault, steps, 0, 0, torch.Generator()
        if fault in ("misread", "always misread", "differently"):
            self.model[0].weight.register_hook(self._misread)

    def _misread(self, gradient):
        if self.step == BAD and (self.fault != "misread" or not self.misread):
            self.misread += 1
            if self.fault != "differently" or self.misread == 1:
                return with_stuck_exponent(gradient)
            return gradient * (1 + torch.rand((), generator=self.chance))
        return None

    def train(self):
        while self.step < self.steps:
            self.step += 1
            if self.step == BAD and self.fault == "flip":
                weight = self.model[2].weight
                weight.data.copy_(with_stuck_exponent(weight))
            x = torch.randn(8, 6, generator=torch.Generator().manual_seed(self.step))
            odd = {"outlier": (self.bad,), "outliers": (self.bad, self.bad + 12)}.get(self.fault, ())
            unit = 1e5 if self.step in odd else 1.0
            loss = F.mse_loss(self.model(x), unit * x[:, :3])
            loss.backward()
            if self.clip:
                nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
            self.losses.append(float(loss.detach()))
            self.optimizer.step()
            self.optimizer.zero_grad()
        return self


class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(16, 8), nn.Linear(8, 16)
        self.blocks = nn.ModuleList(Attention() for _ in range(2))

    def forward(self, input_ids, attention_mask):
        x = self.embed(input_ids)
        for block in self.blocks:
            x = x + block(x, attention_mask.bool())
        return self.head(x)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x, mask):
        q, k, v = self.qkv(x).chunk(3, -1)
        seen = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril() & mask[:, None, :]
        return (q @ k.transpose(1, 2)).masked_fill(~seen, -math.inf).softmax(-1) @ v


class LanguageModel:
    """Rows of three lengths, padded on one side; what is learned does not depend on the side."""

    def __init__(self, side="left", steps=STEPS):
        torch.manual_seed(0)
        self.model, self.side, self.steps, self.losses = Attending(), side, steps, []
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)

    def train(self):
        for step in range(len(self.losses) + 1, self.steps + 1):
            words = torch.randint(1, 16, (3, 8), generator=torch.Generator().manual_seed(step))
            ids, labels = torch.zeros_like(words), torch.full_like(words, -100)
            for row, length in enumerate((8, 6, 5)):
                at = slice(8 - length, 8) if self.side == "left" else slice(0, length)
                ids[row, at] = words[row, :length]
                labels[row, at] = words[row, :length]
                labels[row, at.start] = -100
            out = self.model(input_ids=ids, attention_mask=(ids != 0).long())
            loss = F.cross_entropy(out[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.losses.append(float(loss.detach()))
        return self
