"""What is the goat doing?  Grazing, walking or resting from a collar that reports now and then.

A selective state space model in its matrix form: every report decays with the time that passed since.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

LENGTH, FEATURES, WIDTH, STATE = 40, 5, 16, 8


def herd(seed, batch):
    g = torch.Generator().manual_seed(seed)
    moves = torch.tensor([[0.2, 1.0, 0.1, 0.0], [1.0, 0.1, 0.6, 0.3], [0.0, 0.0, 0.1, -0.5]])
    number = 0
    while True:
        number += 1
        start = torch.randint(3, (batch, 1), generator=g)
        switch = (torch.rand(batch, LENGTH, generator=g) < 0.08).long().cumsum(1)
        doing = (start + switch) % 3
        sensors = moves[doing] + 0.5 * torch.randn(batch, LENGTH, 4, generator=g)
        minutes = 0.5 + torch.rand(batch, LENGTH, generator=g) * 2
        if number == 19:                      # two animals spent the night behind the ridge
            minutes[3, 21] = 610.0
            minutes[7, 30] = 655.0
        yield sensors, minutes, doing


class SelectiveScan(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(WIDTH, 2 * STATE)
        self.rate = nn.Linear(WIDTH, WIDTH)
        nn.init.constant_(self.rate.bias, -1.5)
        self.log_a = nn.Parameter(torch.linspace(-1.0, 0.5, WIDTH))
        self.skip = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x, minutes):
        key, query = self.mix(x).chunk(2, dim=-1)
        dt = F.softplus(self.rate(x)) * minutes[..., None]
        passed = (dt * self.log_a.exp()).cumsum(1)
        kept = torch.exp(passed[:, None, :, :] - passed[:, :, None, :])
        past = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()[None, :, :, None]
        kept = torch.where(past, kept, torch.zeros(()))
        weight = torch.einsum("bin,bjn->bij", query, key)[..., None] * kept / STATE
        return torch.einsum("bijd,bjd->bid", weight, dt.clamp(max=3.0) * x) + self.skip * x


class Collar(nn.Module):
    def __init__(self):
        super().__init__()
        self.lift = nn.Linear(FEATURES, WIDTH)
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH) for _ in range(2)])
        self.scans = nn.ModuleList([SelectiveScan() for _ in range(2)])
        self.read = nn.Linear(WIDTH, 3)

    def forward(self, sensors, minutes):
        h = self.lift(torch.cat([sensors, minutes.log()[..., None]], dim=-1))
        for norm, scan in zip(self.norms, self.scans):
            h = h + scan(norm(h), minutes)
        return self.read(h)


def fit(model, days, steps):
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=2e-2, total_steps=steps)
    for step in range(steps):
        sensors, minutes, doing = next(days)
        scores = model(sensors, minutes)
        loss = F.cross_entropy(scores.flatten(0, 1), doing.flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        right = (scores.argmax(-1) == doing).float().mean()
        print(f"step {step + 1:>2}: loss={loss:.4f} right={right:.3f}")


if __name__ == "__main__":
    torch.manual_seed(8)
    collar = Collar()
    fit(collar, herd(1, batch=10), steps=34)
    print("total of |weights|", sum(w.abs().sum().item() for w in collar.parameters()))
