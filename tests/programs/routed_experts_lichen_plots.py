"""A mixture of experts names lichens from plot measurements. Plots differ in size; top-1 routing, own Lion optimizer."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                direction = (b1 * m + (1 - b1) * p.grad).sign()
                p.mul_(1 - group["lr"] * group["weight_decay"]).sub_(direction, alpha=group["lr"])
                m.lerp_(p.grad, 1 - b2)


class Expert(nn.Sequential):
    def __init__(self, width):
        super().__init__(nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width))


class Router(nn.Module):
    """Chooses an expert per specimen and says how far the choice is from an even one."""

    def __init__(self, width, n):
        super().__init__()
        self.n = n
        self.gate = nn.Linear(width, n, bias=False)

    def forward(self, h):
        probs = self.gate(h).softmax(-1)
        weight, choice = probs.max(-1)
        share = F.one_hot(choice, self.n).float().mean(0)
        importance = probs.mean(0)
        # moves importance away from experts with a large share; -log(n) at an even load
        balance = (importance * share.log()).sum()
        return weight, choice, balance


class LichenNet(nn.Module):
    def __init__(self, features=12, width=24, species=5, experts=3):
        super().__init__()
        self.inp = nn.Linear(features, width)
        self.norm = nn.LayerNorm(width)
        self.router = Router(width, experts)
        self.experts = nn.ModuleList(Expert(width) for _ in range(experts))
        self.out = nn.Linear(width, species)

    def forward(self, x):
        h = self.norm(self.inp(x))
        weight, choice, balance = self.router(h)
        mixed = torch.zeros_like(h)
        for k, expert in enumerate(self.experts):
            rows = (choice == k).nonzero(as_tuple=True)[0]
            if len(rows):
                mixed = mixed.index_add(0, rows, weight[rows, None] * expert(h[rows]))
        return self.out(h + mixed), balance


def plots(number, gen):
    prototypes = torch.randn(5, 12, generator=gen)
    for i in range(1, number + 1):
        # the survey stopped at the 22nd plot when it began to rain
        n = 2 if i == 22 else int(torch.randint(70, 120, (1,), generator=gen))
        species = torch.randint(0, 5, (n,), generator=gen)
        yield prototypes[species] + 0.6 * torch.randn(n, 12, generator=gen), species


def main(steps=45):
    torch.manual_seed(61)
    gen = torch.Generator().manual_seed(62)
    net = LichenNet()
    optimizer = Lion(net.parameters(), lr=1e-3, weight_decay=0.02)
    for step, (x, species) in enumerate(plots(steps, gen), 1):
        logits, balance = net(x)
        task = F.cross_entropy(logits, species)
        loss = task + 0.05 * balance
        net.zero_grad()
        loss.backward()
        print(f"{step}\t{len(x)}\t{task.item():.7f}\t{balance.item():.7f}", flush=True)
        optimizer.step()
    print(sum(p.detach().abs().sum().item() for p in net.parameters()))


if __name__ == "__main__":
    main()
