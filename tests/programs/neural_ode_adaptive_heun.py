"""Latent-free neural ODE of a damped swing, own adaptive Heun solver with a step size for each trajectory."""
import torch
import torch.nn as nn


class Field(nn.Module):
    """Autonomous field without bias: the hanging position stays a fixed point."""

    def __init__(self, width=32):
        super().__init__()
        self.inner = nn.Linear(2, width, bias=False)
        self.outer = nn.Linear(width, 2, bias=False)

    def forward(self, y):
        return self.outer(torch.tanh(self.inner(y)))


class AdaptiveHeun:
    """Each trajectory has its own step size, taken from how fast the field turns along a short probe."""

    def __init__(self, tolerance=2e-2, probe=0.05, steps=8):
        self.tolerance, self.probe, self.steps = tolerance, probe, steps

    def wish(self, field, y, k1):
        turn = (field(y + self.probe * k1) - k1) / self.probe
        size = torch.sqrt((turn * turn).mean(-1))
        return torch.sqrt(2 * self.tolerance / (size + 1e-9))

    def integrate(self, field, y, until):
        t = torch.zeros(len(y))
        for _ in range(self.steps):
            k1 = field(y)
            h = torch.minimum(self.wish(field, y, k1), until - t)
            k2 = field(y + h[:, None] * k1)
            y = y + h[:, None] * (k1 + k2) / 2
            t = t + h
        return y, t


class NeuralODE(nn.Module):
    def __init__(self):
        super().__init__()
        self.field = Field()
        self.solver = AdaptiveHeun()

    def forward(self, y0, until):
        return self.solver.integrate(self.field, y0, until)


def swing(y0, until, n=200):
    y, dt = y0.clone(), (until / n)[:, None]
    for _ in range(n):
        angle, speed = y[:, :1], y[:, 1:]
        y = y + dt * torch.cat([speed, -torch.sin(angle) - 0.2 * speed], 1)
    return y


def recordings(gen, n=160):
    y0 = torch.stack([2 * torch.rand(n, generator=gen) - 1, torch.randn(n, generator=gen)], 1)
    y0[91] = 0.0                       # calibration run: nobody pushed the swing
    until = 0.3 + 0.5 * torch.rand(n, generator=gen)
    return y0, until, swing(y0, until)


def main(epochs=4, batch=16):
    torch.manual_seed(19)
    gen = torch.Generator().manual_seed(22)
    y0, until, y1 = recordings(gen)
    model = NeuralODE()
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    step = 0
    for epoch in range(epochs):
        for index in torch.randperm(len(y0), generator=gen).split(batch):
            step += 1
            prediction, reached = model(y0[index], until[index])
            loss = (prediction - y1[index]).square().sum(-1).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            print(f"epoch {epoch} step {step} loss {loss.item():.6f} reached {reached.mean().item():.3f}")
    print("finite", int(all(p.isfinite().all() for p in model.parameters())))


if __name__ == "__main__":
    main()
