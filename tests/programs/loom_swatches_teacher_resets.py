"""Mean-teacher labels for loom swatches with a weight-normalised student.

Two optimizers (backbone / head), backbone frozen for the first ten steps, head reset every twenty steps so that it does
not lock on early teacher errors. The loss leaps at a reset; that is what we want.
"""
import copy
from dataclasses import dataclass, field

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.parametrizations import weight_norm


@dataclass
class Plan:
    steps: int = 70
    thaw_at: int = 11
    reset_every: int = 20
    decay: float = 0.9
    classes: int = 5
    history: list = field(default_factory=list)


class Swatch(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
        self.head = weight_norm(nn.Linear(64, classes))

    def forward(self, x):
        return self.head(self.backbone(x))


def weave(labels):
    """A twill of another pitch for each class, with some lint."""
    r = torch.arange(12.0)
    pitch = 0.5 + 0.45 * labels.float()
    phase = 6.28 * torch.rand(len(labels))
    img = torch.sin(pitch[:, None, None] * (r[None, :, None] + r[None, None, :]) + phase[:, None, None])
    return (img + 0.3 * torch.randn(len(labels), 12, 12)).unsqueeze(1)


def reset_head(student, optimizer):
    g = student.head.parametrizations.weight.original0
    v = student.head.parametrizations.weight.original1
    with torch.no_grad():
        v.normal_(0, 0.3)
        g.fill_(6.0)  # loud on purpose
        student.head.bias.zero_()
    optimizer.state.clear()


def main(plan=Plan()):
    torch.manual_seed(5)
    student = Swatch(plan.classes)
    teacher = copy.deepcopy(student).eval().requires_grad_(False)
    student.backbone.requires_grad_(False)
    slow = torch.optim.SGD(student.backbone.parameters(), lr=0.05, momentum=0.8)
    fast = torch.optim.AdamW(student.head.parameters(), lr=0.02)

    for step in range(1, plan.steps + 1):
        if step == plan.thaw_at:
            student.backbone.requires_grad_(True)
        if step % plan.reset_every == 0:
            reset_head(student, fast)
        y = torch.randint(plan.classes, (24,))
        labelled = torch.arange(24) < (8 if step % 6 else 0)  # each sixth batch has no label at all
        x = weave(y)
        out = student(x)
        if labelled.any():
            sup = F.cross_entropy(out[labelled], y[labelled])
        else:
            sup = out.new_zeros(())
        with torch.no_grad():
            soft = teacher(x + 0.05 * torch.randn_like(x)).softmax(-1)
        ramp = min(1.0, step / 30)
        cons = (out.softmax(-1) - soft).square().mean()
        loss = sup + ramp * cons
        for o in (slow, fast):
            o.zero_grad()
        loss.backward()
        if step >= plan.thaw_at:
            nn.utils.clip_grad_norm_(student.backbone.parameters(), 1.0)
            slow.step()
        fast.step()
        with torch.no_grad():
            for t, s in zip(teacher.parameters(), student.parameters()):
                t.lerp_(s, 1 - plan.decay)
            acc = (out.argmax(-1) == y)[labelled].float().sum() / labelled.sum()  # nan without labels
        plan.history.append(loss.item())
        print(f"{step:3d} loss={loss.item():.6f} cons={cons.item():.6f} acc={acc.item():.3f}")
    print("student", sum(p.double().sum().item() for p in student.parameters()))


main()
