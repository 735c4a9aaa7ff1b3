"""Fish ages from the ring profile of an otolith (Poisson regression on the number of annuli)."""
import torch
from torch import nn
from torch.optim import Optimizer


class RampAdam(Optimizer):
    """Adam whose first beta may be moved between steps by the training loop."""

    def __init__(self, params, lr=1e-3, beta1=0.9, beta2=0.99, eps=1e-8):
        super().__init__(params, dict(lr=lr, beta1=beta1, beta2=beta2, eps=eps))

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            b1, b2 = group["beta1"], group["beta2"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                st = self.state[p]
                if not st:
                    st["t"] = 0
                    st["m"] = torch.zeros_like(p)
                    st["v"] = torch.zeros_like(p)
                st["t"] += 1
                st["m"].lerp_(p.grad, 1 - b1)
                st["v"].mul_(b2).addcmul_(p.grad, p.grad, value=1 - b2)
                m_hat = st["m"] / (1 - b1 ** st["t"])
                v_hat = st["v"] / (1 - b2 ** st["t"])
                p.sub_(group["lr"] * m_hat / v_hat.sqrt().add_(group["eps"]))
        return loss


def otolith(n, gen, length=40):
    age = torch.randint(1, 12, (n,), generator=gen)
    radius = torch.linspace(0, 1, length)
    rings = torch.zeros(n, length)
    for i in range(n):
        marks = 1 - torch.exp(-0.25 * torch.arange(1, age[i] + 1).float())
        rings[i] = torch.exp(-((radius[None] - marks[:, None]) / 0.02) ** 2).sum(0)
    return rings + 0.05 * torch.randn(n, length, generator=gen), age.float()


def train():
    torch.manual_seed(31)
    gen = torch.Generator().manual_seed(32)
    net = nn.Sequential(nn.Unflatten(1, (1, 40)), nn.Conv1d(1, 6, 5), nn.ReLU(), nn.Flatten(),
                        nn.Linear(216, 16), nn.ReLU(), nn.Linear(16, 1), nn.Flatten(0))
    opt = RampAdam(net.parameters(), lr=3e-3)
    criterion = nn.PoissonNLLLoss(log_input=True)
    for step in range(40):
        momentum = min(1.0, 0.75 + 0.0125 * step)
        for group in opt.param_groups:
            group["beta1"] = momentum
        rings, age = otolith(24, gen)

        def closure():
            opt.zero_grad()
            out = criterion(net(rings), age)
            out.backward()
            return out

        loss = opt.step(closure)
        print(f"{step + 1}\t{momentum:.3f}\t{loss.item():.5f}")
    return net


if __name__ == "__main__":
    trained = train()
    with torch.no_grad():
        print("weights squared", f"{sum((p * p).sum() for p in trained.parameters()).item():.5f}")
