"""Self-distillation of a classifier of orchid lips. The losses are plug-ins: @loss("name", weight)."""
import functools
import operator
from typing import Callable, NamedTuple

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(307)


class Plugin(NamedTuple):
    name: str
    weight: float
    fn: Callable


PLUGINS: dict = {}


def loss(name, weight=1.0):
    def register(fn):
        PLUGINS[name] = Plugin(name, weight, fn)
        return fn
    return register


class State(NamedTuple):
    student: torch.Tensor
    teacher: torch.Tensor
    feats: torch.Tensor
    labels: torch.Tensor
    temperature: float


@loss("labels", 0.5)
def supervised(s):
    return F.cross_entropy(s.student, s.labels)


@loss("distil", 1.0)
def distil(s):
    """KL(teacher || student), the teacher being sharpened as the run proceeds."""
    target = torch.softmax(s.teacher / s.temperature, dim=-1)
    return (target * (target.log() - F.log_softmax(s.student, dim=-1))).sum(-1).mean()


@loss("spread", 0.02)
def spread(s):
    z = s.feats - s.feats.mean(0)
    return F.relu(1.0 - z.var(0).add(1e-4).sqrt()).mean()


def compose(names):
    chosen = [PLUGINS[n] for n in names]

    def total(state):
        parts = {p.name: p.weight * p.fn(state) for p in chosen}
        return functools.reduce(operator.add, parts.values()), parts
    return total


class LipNet(nn.Module):
    def __init__(self, genera=9):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(14, 40), nn.GELU(), nn.LayerNorm(40), nn.Linear(40, 24), nn.GELU())
        self.head = nn.Linear(24, genera)

    def forward(self, x):
        h = self.enc(x)
        return self.head(h), h


@torch.no_grad()
def follow(teacher, student, keep):
    for t, s in zip(teacher.parameters(), student.parameters()):
        t.lerp_(s, 1 - keep)


def flowers(centres, g, n=48):
    y = torch.randint(centres.shape[0], (n,), generator=g)
    return centres[y] + 0.4 * torch.randn(n, centres.shape[1], generator=g), y


def main(epochs=60):
    g = torch.Generator().manual_seed(11)
    centres = torch.randn(9, 14, generator=g)
    student, teacher = LipNet(), LipNet()
    teacher.load_state_dict(student.state_dict())
    teacher.requires_grad_(False)
    objective = compose(["labels", "distil", "spread"])
    opt = torch.optim.Adam(student.parameters(), lr=4e-3)
    temperature = 2.0
    for epoch in range(1, epochs + 1):
        x, y = flowers(centres, g)
        out, h = student(x)
        with torch.no_grad():
            soft, _ = teacher(x + 0.05 * torch.randn(x.shape, generator=g))
        total, parts = objective(State(out, soft, h, y, temperature))
        opt.zero_grad()
        total.backward()
        opt.step()
        follow(teacher, student, 0.9)
        temperature *= 0.9
        shown = " ".join(f"{k}={v.item():.5f}" for k, v in parts.items())
        print(f"epoch {epoch:02d} total={total.item():.6f} {shown}")
    print("weights", sum(p.detach().double().sum() for p in student.parameters()).item())


if __name__ == "__main__":
    main()
