import math

import torch
import torch.nn as nn


class Velocity(nn.Module):
    def __init__(self, hidden=48):
        super().__init__()
        self.lift = nn.Linear(3, hidden)
        self.mid = nn.Linear(hidden, hidden)
        self.head = nn.Linear(hidden, 2)

    def forward(self, x, s):
        h = torch.sin(self.lift(torch.cat([x, s], 1)))
        return self.head(nn.functional.gelu(self.mid(h)))


class Callback:
    def on_start(self, trainer): ...
    def on_step(self, trainer): ...


class Average(Callback):
    def on_start(self, trainer):
        self.shadow = [p.detach().clone() for p in trainer.model.parameters()]

    def on_step(self, trainer):
        torch._foreach_lerp_(self.shadow, [p.detach() for p in trainer.model.parameters()], 0.2)


class SwapIn(Callback):
    """At half time the average takes the place of the weights, and the input layer rests from then on."""

    def __init__(self, at, average):
        self.at, self.average = at, average

    def on_step(self, trainer):
        if trainer.step == self.at:
            for p, s in zip(trainer.model.parameters(), self.average.shadow):
                p.data = s.clone()
            trainer.model.lift.requires_grad_(False)
            for p in trainer.model.lift.parameters():
                p.grad = None
            print("-- average swapped in")


class FreshHead(Callback):
    def __init__(self, at):
        self.at = at

    def on_step(self, trainer):
        if trainer.step == self.at:
            nn.init.zeros_(trainer.model.head.weight)
            nn.init.zeros_(trainer.model.head.bias)
            trainer.opt.state.clear()
            print("-- head set to zero")


class AngleBins(Callback):
    def on_step(self, trainer):
        if trainer.step % 9:
            return
        with torch.no_grad():
            x = torch.randn(200, 2, generator=torch.Generator().manual_seed(1))
            for i in range(8):
                x = x + trainer.model(x, torch.full((200, 1), i / 8)) / 8
        bins = ((x[:, 0] + math.pi) / (2 * math.pi) * 8).long().clamp(0, 7)
        length = torch.zeros(8).index_add_(0, bins, x[:, 1]) / torch.bincount(bins, minlength=8)
        print("   mean length by angle:", " ".join(f"{v:.2f}" for v in length.tolist()), "| all", f"{length.nanmean():.3f}")


class Trainer:
    def __init__(self, model, callbacks, steps=36):
        self.model, self.callbacks, self.steps = model, callbacks, steps
        self.opt = torch.optim.AdamW(model.parameters(), lr=6e-3, weight_decay=0.0)
        self.g = torch.Generator().manual_seed(55)

    def leaves(self, n=128):
        angle = 0.9 + 0.25 * torch.randn(n, 1, generator=self.g)
        return torch.cat([angle, 1.5 * torch.cos(angle) + 0.1 * torch.randn(n, 1, generator=self.g)], 1)

    def fit(self):
        for c in self.callbacks:
            c.on_start(self)
        for self.step in range(1, self.steps + 1):
            data = self.leaves()
            noise, s = torch.randn(data.shape, generator=self.g), torch.rand(len(data), 1, generator=self.g)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                guess = self.model(noise.lerp(data, s), s)
            loss = ((guess.float() - (data - noise)) ** 2).mean()
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            print(f"{self.step}/{self.steps} fm {loss.item():.4f}")
            for c in self.callbacks:
                c.on_step(self)


torch.manual_seed(19)
average = Average()
model = Velocity()
Trainer(model, [average, SwapIn(18, average), FreshHead(24), AngleBins()]).fit()
print("|w| =", f"{sum(p.abs().sum().item() for p in model.parameters()):.4f}")
