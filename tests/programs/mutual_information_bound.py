"""How many nats do two noisy sensors share?  MINE: a statistics network maximises the
Donsker-Varadhan bound, so the loss is minus a lower bound and goes well below zero."""
import math

import torch
from torch import nn

torch.manual_seed(11)
torch.set_num_threads(1)

RHO = 0.95
DIM = 3
TRUE_MI = -0.5 * DIM * math.log(1 - RHO ** 2)


class Statistics(nn.Module):
    def __init__(self, dim, width=48):
        super().__init__()
        self.left = nn.Linear(dim, width)
        self.right = nn.Linear(dim, width, bias=False)
        self.mix = nn.Sequential(nn.ELU(), nn.Linear(width, width), nn.ELU(), nn.Linear(width, 1))

    def forward(self, a, b):
        return self.mix(self.left(a) + self.right(b)).squeeze(-1)


class RunningPartition:
    """log of the moving average of E[exp T], kept in log space; nothing has been seen yet at -inf"""

    def __init__(self, decay=0.9):
        self.log_value = torch.tensor(float("-inf"))
        self.decay = decay

    def update(self, log_mean):
        old = self.log_value + math.log(self.decay)
        new = log_mean + math.log(1 - self.decay)
        if math.isinf(self.log_value.item()):
            self.log_value = log_mean.clone()
        else:
            self.log_value = torch.logaddexp(old, new)
        return self.log_value


def sensors(n):
    a = torch.randn(n, DIM)
    b = RHO * a + math.sqrt(1 - RHO ** 2) * torch.randn(n, DIM)
    return a, b


def main():
    net = Statistics(DIM)
    opt = torch.optim.RMSprop(net.parameters(), lr=2e-3)
    running = RunningPartition()
    best = float("inf")
    for step in range(1, 81):
        a, b = sensors(256)
        joint = net(a, b).mean()
        marginal = net(a, b[torch.randperm(len(b))])
        log_mean = torch.logsumexp(marginal, 0) - math.log(len(b))
        with torch.no_grad():
            z = running.update(log_mean.detach())
            correction = (marginal - z).exp()
        # unbiased gradient: d E[exp T] / running average
        surrogate = -(joint - (correction * marginal).mean())
        opt.zero_grad()
        surrogate.backward()
        opt.step()
        bound = (joint - log_mean).item()
        best = min(best, -bound)
        print(f"step {step:3d} loss {surrogate.item():9.4f} bound {bound:7.4f} best {best:8.4f}")
    print(f"true mutual information {TRUE_MI:.4f}")


if __name__ == "__main__":
    main()
