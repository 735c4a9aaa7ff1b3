# Wreck or rock? Multi-class hinge on side-scan sonar features, with sharpness-aware minimisation around AdamW.
import torch
from torch import nn


class SAM:
    """Sharpness-aware minimisation as a wrapper: ascend, second gradient, come back, descend."""

    def __init__(self, base, rho=0.05):
        self.base, self.rho, self.saved = base, rho, {}

    @property
    def params(self):
        return [p for g in self.base.param_groups for p in g["params"] if p.grad is not None]

    def _grad_norm(self):
        return torch.stack([p.grad.norm() for p in self.params]).norm()

    @torch.no_grad()
    def ascend(self):
        norm = self._grad_norm()
        scale = self.rho / norm
        for p in self.params:
            self.saved[p] = p.detach().clone()
            p.add_(p.grad * scale)

    @torch.no_grad()
    def come_back(self):
        for p, w in self.saved.items():
            p.copy_(w)
        self.saved.clear()

    def step(self, closure):
        loss = closure()
        self.ascend()
        self.base.zero_grad()
        sharp = closure()
        self.come_back()
        self.base.step()
        self.base.zero_grad()
        return loss.detach(), sharp.detach()


class SonarHead(nn.Module):
    def __init__(self, d=10, classes=3):
        super().__init__()
        self.lift = nn.Linear(d, 24)
        self.score = nn.Linear(24, classes)

    def forward(self, x):
        return self.score(torch.relu(self.lift(x)))


class Survey:
    """One batch per track line. On most lines the echoes are faint; line 23 passes right over the harbour moles."""

    def __init__(self, seed):
        self.g = torch.Generator().manual_seed(seed)
        self.prototypes = torch.randn(3, 10, generator=self.g)

    def line(self, n, size=20):
        y = torch.randint(0, 3, (size,), generator=self.g)
        noise = torch.randn(size, 10, generator=self.g)
        if n == 23:
            return 9.0 * self.prototypes[y] + 0.1 * noise, y
        x = self.prototypes[y] + 1.2 * noise
        y = torch.where(torch.arange(size) < 2, (y + 1) % 3, y)     # divers disagree about some
        return x, y


def run(lines=40):
    torch.manual_seed(77)
    survey, net = Survey(5), SonarHead()
    hinge = nn.MultiMarginLoss()
    opt = SAM(torch.optim.AdamW(net.parameters(), lr=8e-3, weight_decay=0.0))
    for n in range(1, lines + 1):
        x, y = survey.line(n)

        def closure():
            loss = hinge(net(x), y)
            loss.backward()
            return loss

        plain, sharp = opt.step(closure)
        print(f"line {n:02d} hinge {plain.item():.6f} after ascent {sharp.item():.6f}")
    return net


trained = run()
print("checksum", sum(p.double().sum() for p in trained.parameters()).item())
