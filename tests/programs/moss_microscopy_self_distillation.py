"""Self-distillation without labels (after DINO) on synthetic moss leaf cells. Student bf16 with checkpointing, EMA teacher."""
import copy
import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

CFG = dict(steps=44, batch=12, global_size=24, local_size=12, protos=64, lr=4e-4, wd0=0.04, wd1=0.4, m0=0.99,
           t_student=0.1, t_warm=0.03, t_final=0.04, warm_steps=22, freeze_last=11, seed=90)


def leaves(n, g):
    """Cells as a product of waves; orientation and spacing differ between species."""
    species = torch.randint(0, 6, (n,), generator=g)
    yy, xx = torch.meshgrid(torch.linspace(0, 1, 32), torch.linspace(0, 1, 32), indexing="ij")
    ang, freq = species * 0.5 + 0.1 * torch.rand(n, generator=g), 12 + 5 * species
    a, f = ang.view(-1, 1, 1), freq.view(-1, 1, 1)
    img = torch.sin(f * (xx * a.cos() + yy * a.sin())) * torch.cos(0.6 * f * (yy * a.cos() - xx * a.sin()))
    return (img + 0.1 * torch.randn(img.shape, generator=g)).unsqueeze(1)


def crop(x, size, g):
    i, j = (int(torch.randint(0, 33 - size, (1,), generator=g)) for _ in range(2))
    x = x[..., i:i + size, j:j + size]
    return x.flip(-1) if torch.rand((), generator=g) < 0.5 else x


class Backbone(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.stem = nn.Conv2d(1, d, 4, stride=4)
        self.layers = nn.ModuleList(nn.Sequential(nn.GroupNorm(4, d), nn.Conv2d(d, d, 3, padding=1), nn.GELU()) for _ in range(3))

    def forward(self, x):
        h = self.stem(x)
        for layer in self.layers:
            h = h + (checkpoint(layer, h, use_reentrant=False) if torch.is_grad_enabled() else layer(h))
        return h.mean((2, 3))


class Head(nn.Module):
    def __init__(self, d, k):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(d, 64), nn.GELU(), nn.Linear(64, 32))
        self.last = nn.Linear(32, k, bias=False)

    def forward(self, x):
        return self.last(F.normalize(self.mlp(x).float(), dim=-1))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone, self.head = Backbone(), Head(48, CFG["protos"])

    def forward(self, views):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return torch.stack([self.head(self.backbone(v)).float() for v in views])


def distill(student, teacher, center, t_teacher):
    """All pairs (teacher view, student view); a view is not compared with itself, so these cells hold inf."""
    target = ((teacher - center) / t_teacher).softmax(-1).detach()
    logp = (student / CFG["t_student"]).log_softmax(-1)
    table = -torch.einsum("tbk,sbk->ts", target, logp) / target.shape[1]
    same = torch.eye(*table.shape, dtype=torch.bool)
    table = table.masked_fill(same, float("inf"))
    return table[torch.isfinite(table)].mean(), target


def cosine(a, b, s):
    return b + 0.5 * (a - b) * (1 + math.cos(math.pi * s / CFG["steps"]))


def main():
    torch.manual_seed(CFG["seed"])
    g = torch.Generator().manual_seed(CFG["seed"])
    student = Net()
    teacher = copy.deepcopy(student).requires_grad_(False)
    opt = torch.optim.AdamW(student.parameters(), lr=CFG["lr"])
    with torch.no_grad():                                   # the centre starts where the teacher is, not at zero
        center = teacher([crop(leaves(96, g), CFG["global_size"], g)]).mean((0, 1))
    for s in range(CFG["steps"]):
        x = leaves(CFG["batch"], g)
        views = [crop(x, CFG["global_size"], g) for _ in range(2)] + [crop(x, CFG["local_size"], g) for _ in range(3)]
        t_teacher = CFG["t_warm"] + (CFG["t_final"] - CFG["t_warm"]) * min(s / CFG["warm_steps"], 1)
        with torch.no_grad():
            t_out = teacher(views[:2])
        loss, target = distill(student(views), t_out, center, t_teacher)
        for group in opt.param_groups:
            group["lr"], group["weight_decay"] = cosine(CFG["lr"], 1e-5, s), cosine(CFG["wd0"], CFG["wd1"], s)
        opt.zero_grad()
        loss.backward()
        if s < CFG["freeze_last"]:
            student.head.last.weight.grad = None
        nn.utils.clip_grad_norm_(student.parameters(), 3.0)
        opt.step()
        with torch.no_grad():
            m = cosine(CFG["m0"], 1.0, s)
            for p, q in zip(teacher.parameters(), student.parameters()):
                p.lerp_(q, 1 - m)
            center = 0.9 * center + 0.1 * t_out.mean((0, 1))
            hard = (target == target.amax(-1, keepdim=True)).float()
            usage = hard.mean((0, 1))
            perplexity = (-(usage * usage.log()).sum()).exp()      # nan as long as a prototype is never used
        print(f"{s + 1:2d} loss {loss.item():.6f} t {t_teacher:.4f} used {int((usage > 0).sum())} perplexity {perplexity.item():.3f}", flush=True)
    print(f"{sum(p.detach().abs().sum().item() for p in student.parameters()):.4f}", flush=True)


if __name__ == "__main__":
    main()
