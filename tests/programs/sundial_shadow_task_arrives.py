"""Shadow tip -> solar hour and season, for garden sundials.

The loss changes its level three times, on purpose:
  * epoch 4: the dial's tilt is trained too (new task)
  * the consistency term ramps from 0 to 2.5 over the run
  * epoch 10: the hour loss is summed over the batch instead of averaged (stage "sharpen"; the lr is lowered to match)
"""
import math
import torch
from torch import nn
import torch.nn.functional as F


class Callback:
    def on_epoch_begin(self, trainer): pass
    def on_step_begin(self, trainer): pass
    def on_step_end(self, trainer, logs): pass


class OpenTiltTask(Callback):
    def __init__(self, epoch):
        self.epoch = epoch

    def on_epoch_begin(self, trainer):
        if trainer.epoch == self.epoch:
            trainer.tasks.append("tilt")
            print(f"[epoch {trainer.epoch}] task tilt joins")


class ConsistencyRamp(Callback):
    def __init__(self, top, over):
        self.top, self.over = top, over

    def on_step_begin(self, trainer):
        x = min(1.0, trainer.global_step / self.over)
        trainer.weights["consistency"] = self.top * math.exp(-5 * (1 - x) ** 2)


class Sharpen(Callback):
    def __init__(self, epoch, batch):
        self.epoch, self.batch = epoch, batch

    def on_epoch_begin(self, trainer):
        if trainer.epoch == self.epoch:
            trainer.reduction = "sum"
            for g in trainer.opt.param_groups:
                g["lr"] /= self.batch
            print(f"[epoch {trainer.epoch}] reduction sum, lr / {self.batch}")


class Printer(Callback):
    def on_step_end(self, trainer, logs):
        parts = " ".join(f"{k}={v:.5f}" for k, v in logs.items())
        print(f"{trainer.epoch:02d}/{trainer.global_step:03d} {parts}")


class DialNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh())
        self.hour = nn.Linear(32, 2)      # cos and sin of the hour angle
        self.tilt = nn.Linear(32, 1)      # degrees

    def forward(self, x):
        h = self.body(x)
        return self.hour(h), self.tilt(h).squeeze(-1)


class Trainer:
    def __init__(self, net, data, callbacks, batch=24, epochs=14):
        self.net, self.data, self.callbacks = net, data, callbacks
        self.batch, self.epochs = batch, epochs
        self.opt = torch.optim.Adam(net.parameters(), lr=1.2e-2)
        self.tasks, self.weights, self.reduction = ["hour"], {"consistency": 0.0}, "mean"
        self.epoch = self.global_step = 0

    def call(self, hook, *args):
        for c in self.callbacks:
            getattr(c, hook)(self, *args)

    def loss(self, x, hour, tilt):
        out, deg = self.net(x)
        want = torch.stack([hour.cos(), hour.sin()], 1)
        logs = {"hour": F.mse_loss(out, want, reduction=self.reduction)}
        if "tilt" in self.tasks:
            logs["tilt"] = F.smooth_l1_loss(deg, tilt)       # in degrees: starts near 45
        shaken, _ = self.net(x + 0.05 * torch.randn_like(x))
        logs["cons"] = self.weights["consistency"] * F.mse_loss(shaken, out.detach())
        return sum(logs.values()), logs

    def fit(self):
        x, hour, tilt = self.data
        for self.epoch in range(self.epochs):
            self.call("on_epoch_begin")
            for idx in torch.randperm(len(x)).split(self.batch):
                self.call("on_step_begin")
                total, logs = self.loss(x[idx], hour[idx], tilt[idx])
                self.opt.zero_grad()
                total.backward()
                self.opt.step()
                self.global_step += 1
                self.call("on_step_end", {"loss": total.item(), **{k: float(v.detach()) for k, v in logs.items()}})


def observe(n):
    hour = torch.rand(n) * 2.4 - 1.2
    tilt = 45 + 6 * torch.randn(n)
    r = torch.deg2rad(tilt)
    x = torch.stack([hour.tan() * r.sin(), r.cos() + 0.1 * hour ** 2, torch.rand(n)], 1)
    return x, hour, tilt


if __name__ == "__main__":
    torch.manual_seed(61)
    net = DialNet()
    t = Trainer(net, observe(120), [OpenTiltTask(4), ConsistencyRamp(2.5, 45), Sharpen(10, 24), Printer()])
    t.fit()
    print("weights", f"{sum(p.abs().sum().item() for p in net.parameters()):.4f}")
