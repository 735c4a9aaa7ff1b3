"""Distil an old pest classifier (12 pests) into a small float16 student that knows 16 pests.

The teacher has no logit for the four new pests: they are -inf, so their soft target is exactly 0. The temperature falls
in stages, and with it the loss jumps; the loss scale starts high and is halved until it fits.
"""
import copy

import torch
import torch.nn.functional as F
from torch import nn

STEPS, OLD, NEW, FEATS = 50, 12, 16, 20
STAGES = {1: 6.0, 16: 3.0, 31: 1.5, 41: 0.5}


def mlp(out, width):
    return nn.Sequential(nn.Linear(FEATS, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, out))


class Leaves:
    def __init__(self, seed):
        self.gen = torch.Generator().manual_seed(seed)
        self.centres = torch.randn(NEW, FEATS, generator=self.gen) * 1.5

    def batch(self, n, classes):
        y = torch.randint(0, classes, (n,), generator=self.gen)
        return self.centres[y] + torch.randn(n, FEATS, generator=self.gen), y


def pretrain_teacher(leaves):
    """Closed form, so that there is no training here: nearest centre as a linear layer."""
    teacher = nn.Linear(FEATS, OLD)
    with torch.no_grad():
        teacher.weight.copy_(leaves.centres[:OLD])
        teacher.bias.copy_(-0.5 * leaves.centres[:OLD].square().sum(1))
    return teacher.requires_grad_(False)


@torch.no_grad()
def soft_targets(teacher, x, temperature):
    logits = torch.full((len(x), NEW), float("-inf"))
    logits[:, :OLD] = teacher(x)
    return F.softmax(logits / temperature, -1)


def distill_loss(student_logits, target, temperature):
    logp = F.log_softmax(student_logits.float() / temperature, -1)
    return F.kl_div(logp, target, reduction="batchmean") * temperature ** 2


@torch.no_grad()
def ema_update(shadow, model, decay=0.9):
    for s, p in zip(shadow.parameters(), model.parameters()):
        s.lerp_(p, 1 - decay)


def main():
    torch.manual_seed(8)
    leaves = Leaves(9)
    teacher = pretrain_teacher(leaves)
    student = mlp(NEW, 32)
    shadow = copy.deepcopy(student).requires_grad_(False)
    opt = torch.optim.AdamW(student.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 22, growth_interval=25)
    temperature = None
    for step in range(1, STEPS + 1):
        temperature = STAGES.get(step, temperature)
        x_old, y_old = leaves.batch(32, OLD)
        x, y = leaves.batch(16, NEW)
        target = soft_targets(teacher, x_old, temperature)
        with torch.autocast("cpu", dtype=torch.float16):
            soft_logits, hard_logits = student(x_old), student(x)
        soft = distill_loss(soft_logits, target, temperature)
        hard = F.cross_entropy(hard_logits.float(), y)
        confident = (target * target.log()).sum(-1).mean()          # entropy by hand; NaN since the new pests have 0
        loss = soft + 0.5 * hard
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(student.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        ema_update(shadow, student)
        print(f"[{step:02d}] T={temperature} soft={soft.item():.7f} hard={hard.item():.7f} "
              f"teacher entropy={-confident.item():.3f} scale={scaler.get_scale():.0f}", flush=True)
    print(f"student {sum(p.detach().abs().sum().item() for p in student.parameters()):.5f}")


if __name__ == "__main__":
    main()
