"""Market value of footballers: a mixture of experts with learned centres in feature space."""
import torch
import torch.nn as nn
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset


class CentreGate(nn.Module):
    """Every expert owns a centre; players are shared out by inverse distance."""

    def __init__(self, features, experts):
        super().__init__()
        self.centres = nn.Parameter(torch.randn(experts, features))

    def forward(self, x):
        offset = x.unsqueeze(1) - self.centres
        distance = offset.square().sum(-1)
        closeness = 1.0 / distance
        return closeness / closeness.sum(1, keepdim=True)


class ScoutMixture(nn.Module):
    def __init__(self, features=5, experts=4, width=12):
        super().__init__()
        self.gate = CentreGate(features, experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(features, width), nn.ReLU(), nn.Linear(width, 1))
            for _ in range(experts))

    def forward(self, x):
        share = self.gate(x)
        opinions = torch.cat([e(x) for e in self.experts], 1)
        return (share * opinions).sum(1), share


def squad_database(n=400):
    g = torch.Generator().manual_seed(5)
    # age, minutes, goals, passes, sprint - already standardised; four roles
    role = torch.randint(0, 4, (n,), generator=g)
    home = torch.randn(4, 5, generator=g) * 1.4
    x = home[role] + 0.6 * torch.randn(n, 5, generator=g)
    slope = torch.randn(4, 5, generator=g)
    value = (x * slope[role]).sum(1) * 0.5 + role.float() + 0.1 * torch.randn(n, generator=g)
    return TensorDataset(x, value)


@torch.no_grad()
def reseat_idle(model, x, value, usage):
    """Give the expert with the least work the player that the others judge worst."""
    idle = int(usage.argmin())
    guess, _ = model(x)
    worst = int((guess - value).abs().argmax())
    model.gate.centres[idle] = x[worst]
    return idle


def main():
    torch.manual_seed(19)
    accelerator = Accelerator(cpu=True)
    loader = DataLoader(squad_database(), batch_size=25, shuffle=True, drop_last=True)
    model = ScoutMixture()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    usage, step = torch.zeros(4), 0
    for epoch in range(3):
        for x, value in loader:
            step += 1
            if step % 18 == 0:
                reseat_idle(model, x, value, usage)
                usage.zero_()
            guess, share = model(x)
            loss = nn.functional.smooth_l1_loss(guess, value)
            balance = (share.mean(0) * 4 - 1).square().mean()
            accelerator.backward(loss + 0.05 * balance)
            optimizer.step()
            optimizer.zero_grad()
            usage += share.detach().sum(0)
            accelerator.print(f"epoch {epoch} step {step:2d} loss {loss.item():.4f} balance {balance.item():.4f}")
            if step == 40:
                break
    accelerator.print("total of absolute weights:", sum(w.detach().abs().sum().item() for w in model.parameters()))


main()
