"""Waiting time at ski lifts: predictive density, with our little Trainer (same hooks as the big one)."""
import torch
from torch import nn


class LiftData(torch.utils.data.Dataset):
    """Snow depth, wind, hour, weekend, visitors; the stations often fail to report."""

    def __init__(self, n):
        g = torch.Generator().manual_seed(6)
        full = torch.randn(n, 5, generator=g)
        wait = 0.5 * full[:, 2] + 0.4 * full[:, 4] - 0.2 * full[:, 1]
        self.wait = wait + 0.02 * torch.randn(n, generator=g)
        gone = torch.rand(n, 5, generator=g) < torch.tensor([0.3, 0.2, 0.0, 0.0, 0.05])
        self.readings = full.masked_fill(gone, float("nan"))

    def __len__(self):
        return len(self.wait)

    def __getitem__(self, i):
        return {"readings": self.readings[i], "labels": self.wait[i]}


class LiftModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.usual = nn.Parameter(torch.zeros(5))
        self.trunk = nn.Sequential(nn.Linear(10, 32), nn.SiLU(), nn.Linear(32, 32), nn.SiLU())
        self.mean, self.log_sd = nn.Linear(32, 1), nn.Linear(32, 1)

    def forward(self, readings):
        missing = readings.isnan()
        filled = torch.where(missing, self.usual, readings)
        h = self.trunk(torch.cat([filled, missing.float()], 1))
        return {"mean": self.mean(h).squeeze(1), "log_sd": self.log_sd(h).squeeze(1)}


class Trainer:
    def __init__(self, model, data, steps, batch=32, rate=1e-2, callbacks=()):
        self.model, self.steps, self.callbacks = model, steps, callbacks
        self.loader = torch.utils.data.DataLoader(data, batch, shuffle=True, drop_last=True)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
        ramp = lambda k: min((k + 1) / 5, (steps - k) / (steps - 5))
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, ramp)

    def compute_loss(self, inputs):
        raise NotImplementedError

    def fire(self, event, **kw):
        for callback in self.callbacks:
            getattr(callback, event, lambda **kw: None)(trainer=self, model=self.model, **kw)

    def endless(self):
        while True:
            yield from self.loader

    def train(self):
        self.fire("on_train_begin")
        for step, inputs in zip(range(1, self.steps + 1), self.endless()):
            loss = self.compute_loss(inputs)
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 5.0)
            rate = self.scheduler.get_last_lr()[0]
            self.optimizer.step()
            self.scheduler.step()
            self.optimizer.zero_grad()
            self.fire("on_log", step=step, logs={"loss": loss.item(), "rate": rate})
            self.fire("on_step_end", step=step)


class DensityTrainer(Trainer):
    def compute_loss(self, inputs):
        with torch.autocast("cpu", torch.bfloat16):
            out = self.model(inputs["readings"])
        mean, log_sd = out["mean"].float(), out["log_sd"].float().clamp(-5, 3)
        z = (inputs["labels"] - mean) * torch.exp(-log_sd)
        return (0.5 * z.square() + log_sd).mean()


class Seasons:
    """Keeps the trunk fixed for the first steps, and widens the density anew after two thirds."""

    def on_train_begin(self, model, **kw):
        model.trunk.requires_grad_(False)

    def on_step_end(self, model, step, **kw):
        if step == 6:
            model.trunk.requires_grad_(True)
        if step == 26:
            nn.init.zeros_(model.log_sd.weight)
            nn.init.ones_(model.log_sd.bias)


class Paper:
    def on_log(self, step, logs, **kw):
        print({"step": step, **{k: round(v, 5) for k, v in logs.items()}})


if __name__ == "__main__":
    torch.manual_seed(14)
    lifts = LiftModel()
    DensityTrainer(lifts, LiftData(512), steps=42, callbacks=[Paper(), Seasons()]).train()
    print("squares of all weights", sum(p.detach().square().sum().item() for p in lifts.parameters()))
