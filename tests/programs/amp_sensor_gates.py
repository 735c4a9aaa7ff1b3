"""Remaining useful life from event counters: the values see log counts, the gates see the raw ones. float16 autocast."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class CounterGate(nn.Module):
    """Lets a feature pass or not, depending on the raw counters. A burst of events shall close or open it fully."""

    def __init__(self, counters, width):
        super().__init__()
        self.switch = nn.Linear(counters, width)
        nn.init.normal_(self.switch.weight, std=0.5)
        nn.init.zeros_(self.switch.bias)

    def forward(self, counts):
        return torch.sigmoid(self.switch(counts))


class WearModel(nn.Module):
    def __init__(self, counters=16, width=32):
        super().__init__()
        self.gate = CounterGate(counters, width)
        self.value = nn.Sequential(nn.Linear(counters, width), nn.Tanh())
        self.norm = nn.LayerNorm(width)
        self.out = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1))

    def forward(self, counts):
        mixed = self.gate(counts) * self.value(torch.log1p(counts) / 5)
        return self.out(self.norm(mixed)).squeeze(-1)


class Machines:
    """Idle machines count a few events per hour, a machine in a burst tens of thousands."""

    def __init__(self, seed=21):
        self.gen = torch.Generator().manual_seed(seed)

    def draw(self, n=32):
        counts = torch.randint(0, 5, (n, 16), generator=self.gen).float()
        burst = torch.rand(n, generator=self.gen) < 0.2
        high = torch.randint(20_000, 60_000, (n, 16), generator=self.gen).float()
        counts = torch.where(burst[:, None], high, counts)
        life = 1.0 - 0.15 * counts[:, :4].clamp(max=5).mean(1) + 0.05 * torch.randn(n, generator=self.gen)
        return counts, life


class Trainer:
    def __init__(self, model, machines, lr=2e-3):
        self.model, self.machines = model, machines
        self.opt = torch.optim.Adam(model.parameters(), lr=lr)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=10)

    def one_step(self):
        counts, life = self.machines.draw()
        self.opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            prediction = self.model(counts)
        loss = F.smooth_l1_loss(prediction.float(), life)
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.opt)
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.opt)
        self.scaler.update()
        return loss.item(), norm.item()

    def fit(self, steps):
        for step in range(1, steps + 1):
            loss, norm = self.one_step()
            print(f"step {step} loss {loss:.5f} norm {norm:.4f} scale {self.scaler.get_scale():.0f}")


torch.manual_seed(2)
model = WearModel()
Trainer(model, Machines()).fit(30)
print("finite", int(all(p.isfinite().all() for p in model.parameters())))
