"""Energy of an accord: which mixtures of twelve raw materials does a nose find plausible?

Sliced score matching (Song et al. 2019): the loss is E[v' H v + 1/2 |s|^2] up to a constant, which is
negative as soon as the model has learned anything, and hugely so on the narrow noise levels.
Annealed: four noise levels from wide to narrow; the optimizer starts anew at each of them.
"""
import torch
from torch import nn

MATERIALS, STEPS_PER_LEVEL, BATCH = 12, 16, 32
LADDER = [0.5, 0.15, 0.04, 0.01]

torch.manual_seed(5)
gen = torch.Generator().manual_seed(55)


def formulas(n):
    """Chypre, fougere, cologne: log-amounts around three classical skeletons."""
    skeleton = torch.tensor([[2, 0, 1, 0, 0, 2, 1, 0, 0, 1, 0, 0.5],
                             [0, 2, 0, 1, 1, 0, 0, 2, 0.5, 0, 0, 0],
                             [1, 0, 0, 2, 0, 0, 2, 0, 1, 0, 1.5, 0]])
    which = torch.randint(3, (n,), generator=gen)
    return skeleton[which] + 0.05 * torch.randn(n, MATERIALS, generator=gen)


class Energy(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(MATERIALS, d), nn.Softplus(beta=2), nn.Linear(d, d), nn.Softplus(beta=2))
        self.top = nn.Linear(d, 1)
        self.precision = nn.Parameter(torch.zeros(MATERIALS))
        self.centre = nn.Parameter(torch.zeros(MATERIALS))

    def forward(self, x, sigma):
        wide = 0.5 * (self.precision.exp() * (x - self.centre) ** 2).sum(-1)
        return (wide + self.top(self.net(x)).squeeze(-1)) / sigma


def sliced_score_matching(energy, x, sigma):
    x = x.requires_grad_(True)
    v = torch.randint(0, 2, x.shape, generator=gen).float() * 2 - 1          # Rademacher
    score = -torch.autograd.grad(energy(x, sigma).sum(), x, create_graph=True)[0]
    hv = torch.autograd.grad((score * v).sum(), x, create_graph=True)[0]
    curvature = (hv * v).sum(-1)
    return (curvature + 0.5 * score.pow(2).sum(-1)).mean(), score.detach().norm(dim=-1).mean()


def effective_levels(history):
    """Slope of log |loss| between the last two steps: log of a negative number where the sign is not
    taken off, so this column shows nan most of the time. Kept for the comparison with the old script."""
    if len(history) < 2:
        return float("nan")
    a, b = torch.tensor(history[-2]), torch.tensor(history[-1])
    return (torch.log(b) - torch.log(a)).item()


def main():
    energy, step = Energy(), 0
    history = []
    for level, sigma in enumerate(LADDER):
        opt = torch.optim.Adam(energy.parameters(), lr=2e-2 * sigma ** 0.5)
        for _ in range(STEPS_PER_LEVEL):
            step += 1
            x = formulas(BATCH)
            x = x + sigma * torch.randn(x.shape, generator=gen)
            loss, size = sliced_score_matching(energy, x, sigma)
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(energy.parameters(), 10.0)
            opt.step()
            history.append(loss.item())
            print(f"{step:2d} sigma {sigma:<4} loss {loss.item():+.4f} |score| {size.item():.3f} "
                  f"slope {effective_levels(history):.3f}")
    probe = formulas(5)
    print("energies of five formulas", " ".join(f"{e:.3f}" for e in energy(probe, 1.0).tolist()))


if __name__ == "__main__":
    main()
