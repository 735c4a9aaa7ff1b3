"""Pure premium of crop-hail policies: a log-link network and the Tweedie deviance (compound Poisson-gamma)."""
import torch
from torch import nn

P = 1.5
rng = torch.Generator().manual_seed(71)
torch.manual_seed(71)


def portfolio(n):
    risk = torch.randn(n, 6, generator=rng)
    days = torch.randint(20, 366, (n,), generator=rng).float()
    days[[85, 261]] = 0.0                      # signed and cancelled on the same day
    mean = days / 365 * torch.exp(0.4 * risk[:, 0] - 0.3 * risk[:, 3])
    count = torch.poisson(mean, generator=rng)
    size = 0.5 + torch.rand(n, generator=rng)
    return risk, days, count * size


def tweedie_deviance(y, mu):
    grown = y * mu ** (1 - P) / (1 - P)
    level = mu ** (2 - P) / (2 - P)
    ideal = y ** (2 - P) / ((1 - P) * (2 - P))
    return 2 * (ideal - grown + level).mean()


def pure_premium(net, risk, days):
    return days / 365 * net(risk).squeeze(-1).exp()


def main():
    risk, days, paid = portfolio(320)
    net = nn.Sequential(nn.Linear(6, 12), nn.ELU(), nn.Linear(12, 1))
    opt = torch.optim.NAdam(net.parameters(), lr=4e-3)
    for no, lo in enumerate(range(0, 320, 16), start=1):
        rows = slice(lo, lo + 16)
        opt.zero_grad()
        loss = tweedie_deviance(paid[rows], pure_premium(net, risk[rows], days[rows]))
        loss.backward()
        opt.step()
        print(no, repr(loss.item()))
    print(sum(w.double().sum().item() for w in net.parameters()))


main()
