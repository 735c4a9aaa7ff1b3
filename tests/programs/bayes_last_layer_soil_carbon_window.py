"""Soil organic carbon along a tractor's track: learned features, Bayesian linear last layer.

The last layer only remembers the most recent passes: when a pass leaves the window it is taken out of the
precision matrix again, so the matrix never has to be rebuilt.
"""
from collections import deque
import torch
from torch import nn

torch.manual_seed(29)
D, PASS, WINDOW, PRIOR, NOISE = 10, 6, 7, 0.5, 0.05


class Features(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 20), nn.Tanh(), nn.Linear(20, D))

    def forward(self, x):
        return self.net(x)


class LastLayer:
    def __init__(self):
        self.precision = PRIOR * torch.eye(D)
        self.moment = torch.zeros(D)

    def absorb(self, phi, y):
        self.precision = self.precision + phi.T @ phi / NOISE
        self.moment = self.moment + phi.T @ y / NOISE

    def release(self, phi, y):
        self.precision = self.precision - phi.T @ phi / NOISE
        self.moment = self.moment - phi.T @ y / NOISE

    def predict(self, phi):
        chol = torch.linalg.cholesky(self.precision)
        mean = torch.cholesky_solve(self.moment.unsqueeze(1), chol).squeeze(1)
        half = torch.linalg.solve_triangular(chol, phi.T, upper=False)
        return phi @ mean, NOISE + half.square().sum(0)


def track(n):
    for i in range(n):
        base = torch.tensor([0.1 * i, 0.05 * i])
        place = base + 0.3 * torch.randn(PASS, 2)
        sensed = torch.randn(PASS, 2)                   # near infrared, conductivity
        x = torch.cat([torch.sin(place), sensed], 1)
        y = 1.8 + torch.sin(place[:, 0]) - 0.6 * sensed[:, 0] + 0.3 * torch.tanh(sensed[:, 1]) + 0.1 * torch.randn(PASS)
        yield x, y - 1.8


def train():
    feats, layer, recent = Features(), LastLayer(), deque()
    opt = torch.optim.Adam(feats.parameters(), lr=6e-3)
    for n, (x, y) in enumerate(track(40), 1):
        phi = feats(x)
        mean, var = layer.predict(phi)
        loss = (0.5 * (y - mean).square() / var + 0.5 * var.log()).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        with torch.no_grad():
            layer.absorb(feats(x), y)
            recent.append((x, y))
            if len(recent) > WINDOW:
                old_x, old_y = recent.popleft()
                layer.release(feats(old_x), old_y)
        print(f"pass {n:2d}: nll {loss.item():.4f}, mean variance {var.mean().item():.4f}")
    return feats


f = train()
print("sum of |weights|", sum(p.abs().sum().item() for p in f.parameters()))
