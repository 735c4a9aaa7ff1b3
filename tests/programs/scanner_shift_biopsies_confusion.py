"""Biopsy tiles from two slide scanners: one encoder for both, so that a critic cannot tell them apart."""
import torch
import torch.nn.functional as F
from torch import nn


def tiles(g, n, scanner):
    grade = torch.randint(0, 3, (n,), generator=g)
    centre = torch.tensor([[1.2, 0.0, 0.3], [-0.6, 1.0, 0.0], [-0.6, -1.0, 0.4]])
    stain = centre[grade] + 0.4 * torch.randn(n, 3, generator=g)
    pixels = torch.cat([stain, stain.pow(2), torch.randn(n, 4, generator=g) * 0.3], dim=1)
    if scanner == "new":
        pixels = pixels * 1.3 + 0.7
    return pixels, grade


class ScannerConfusion:
    def __init__(self, weight):
        self.encoder = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 12))
        self.grader = nn.Linear(12, 3)
        self.critic = nn.Sequential(nn.Linear(12, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
        self.weight = weight
        self.opt_main = torch.optim.Adam([*self.encoder.parameters(), *self.grader.parameters()], lr=0.03, betas=(0.5, 0.99))
        self.opt_critic = torch.optim.Adam(self.critic.parameters(), lr=2e-4)

    def parameters(self):
        for part in (self.encoder, self.grader, self.critic):
            yield from part.parameters()

    def critic_loss(self, old, new):
        side = self.critic(torch.cat([old, new]))[:, 0]
        truth = torch.cat([torch.ones(len(old)), torch.zeros(len(new))])
        return F.binary_cross_entropy_with_logits(side, truth)

    def fit(self, steps, batch=48):
        g = torch.Generator().manual_seed(31)
        for step in range(1, steps + 1):
            (x, y), (z, _) = tiles(g, batch, "old"), tiles(g, batch, "new")
            # the critic looks first
            with torch.no_grad():
                old, new = self.encoder(x), self.encoder(z)
            seen = self.critic_loss(old, new)
            self.opt_critic.zero_grad()
            seen.backward()
            self.opt_critic.step()
            # then the encoder grades well and confuses the critic
            old, new = self.encoder(x), self.encoder(z)
            grading = F.cross_entropy(self.grader(old), y)
            total = grading - self.weight * self.critic_loss(old, new)
            self.opt_main.zero_grad()
            total.backward()
            self.opt_main.step()
            print(f"{step:3d} grading {grading.item():.5g} critic {seen.item():.5g} total {total.item():.5g}")
        return self


torch.manual_seed(6)
run = ScannerConfusion(weight=1.0).fit(40)
print("sum of |w| over encoder, grader and critic: %.6g" % sum(p.abs().sum().item() for p in run.parameters()))
