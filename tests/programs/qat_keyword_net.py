"""Keyword spotting with quantisation-aware training: observers, fake quantisation, straight-through gradients."""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    classes: int = 6
    bands: int = 20
    frames: int = 30
    batch: int = 24
    steps: int = 36
    fake_quant_from: int = 8      # observers only, before
    freeze_observers_at: int = 24
    lr: float = 3e-3


class RoundSTE(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale, zero, lo, hi):
        q = torch.round(x / scale + zero)
        ctx.save_for_backward((q >= lo) & (q <= hi))
        return (q.clamp(lo, hi) - zero) * scale

    @staticmethod
    def backward(ctx, grad):
        inside, = ctx.saved_tensors
        return grad * inside, None, None, None, None


class Observer(nn.Module):
    """Min/max of everything that went through, as torch.ao does it: empty means min = inf, max = -inf."""

    def __init__(self, cfg):
        super().__init__()
        self.cfg, self.step = cfg, 0
        self.register_buffer("min_val", torch.tensor(float("inf")))
        self.register_buffer("max_val", torch.tensor(float("-inf")))

    def forward(self, x):
        if self.training and self.step < self.cfg.freeze_observers_at:
            with torch.no_grad():
                self.min_val.copy_(torch.minimum(self.min_val, x.min()))
                self.max_val.copy_(torch.maximum(self.max_val, x.max()))
        if self.step < self.cfg.fake_quant_from:
            return x
        lo, hi = self.min_val.clamp(max=0), self.max_val.clamp(min=0)
        scale = ((hi - lo) / 255).clamp(min=1e-8)
        return RoundSTE.apply(x, scale, torch.round(-lo / scale), 0, 255)


class QConv(nn.Module):
    def __init__(self, cfg, cin, cout, stride):
        super().__init__()
        self.conv = nn.Conv1d(cin, cout, 3, stride=stride, padding=1, bias=False)
        self.bn = nn.BatchNorm1d(cout)
        self.weight_observer, self.out_observer = Observer(cfg), Observer(cfg)

    def forward(self, x):
        w = self.weight_observer(self.conv.weight)
        x = F.conv1d(x, w, stride=self.conv.stride, padding=self.conv.padding)
        return self.out_observer(F.relu6(self.bn(x)))


class KeywordNet(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.input_observer = Observer(cfg)
        self.features = nn.Sequential(QConv(cfg, cfg.bands, 32, 1), QConv(cfg, 32, 32, 2), QConv(cfg, 32, 48, 2))
        self.head = nn.Linear(48, cfg.classes)
        self.speaker_branch = QConv(cfg, 48, 16, 1)          # second product, not trained in this recipe
        self.speaker_branch.requires_grad_(False)

    def forward(self, x):
        return self.head(self.features(self.input_observer(x)).mean(-1))

    def set_step(self, step):
        for m in self.modules():
            if isinstance(m, Observer):
                m.step = step


def batches(cfg):
    gen = torch.Generator().manual_seed(11)
    prototypes = torch.randn(cfg.classes, cfg.bands, cfg.frames, generator=gen)
    while True:
        y = torch.randint(cfg.classes, (cfg.batch,), generator=gen)
        loud = torch.rand(cfg.batch, 1, 1, generator=gen) * 2 + 0.2
        yield prototypes[y] * loud + 0.8 * torch.randn(cfg.batch, cfg.bands, cfg.frames, generator=gen), y


def run(cfg):
    torch.manual_seed(0)
    net = KeywordNet(cfg)
    opt = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.05, momentum=0.9, nesterov=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, cfg.steps)
    for step, (x, y) in zip(range(cfg.steps), batches(cfg)):
        net.set_step(step)
        loss = F.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        schedule.step()
        print(f"{step + 1:3d} loss {loss.item():.5f} lr {schedule.get_last_lr()[0]:.4f}")
    unseen = sum(not torch.isfinite(o.min_val) for o in net.modules() if isinstance(o, Observer))
    print("observers without data:", unseen)
    print("finite", int(all(p.isfinite().all() for p in net.parameters())))


if __name__ == "__main__":
    run(Config())
