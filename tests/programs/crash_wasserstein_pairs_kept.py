"""Domain adaptation by optimal transport: features of new microscope are pulled to those of the old one.

Sinkhorn is dear, so the plan and the transported positions are kept for a few iterations.
"""
import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 4))
        self.classify = nn.Linear(4, 3)

    def forward(self, x):
        z = self.f(x)
        return z, self.classify(z)


def sinkhorn_plan(cost, eps=0.5, iterations=30):
    f = torch.zeros(cost.size(0))
    g = torch.zeros(cost.size(1))
    loga = -torch.log(torch.tensor(float(cost.size(0))))
    logb = -torch.log(torch.tensor(float(cost.size(1))))
    for _ in range(iterations):
        f = eps * (loga - torch.logsumexp((g[None] - cost) / eps, 1))
        g = eps * (logb - torch.logsumexp((f[:, None] - cost) / eps, 0))
    return torch.exp((f[:, None] + g[None] - cost) / eps)


class TransportTarget:
    """Where the mass of each new cell goes; refreshed after `every` uses."""

    def __init__(self, every):
        self.every = every
        self.uses = 0
        self.target = None

    def __call__(self, z_new, z_old):
        if self.target is None or self.uses >= self.every:
            cost = torch.cdist(z_new, z_old) ** 2
            plan = sinkhorn_plan(cost / cost.detach().mean())
            self.target = plan @ z_old / plan.sum(1, keepdim=True)
            self.uses = 0
        self.uses += 1
        return self.target


def main():
    g = torch.Generator().manual_seed(77)
    torch.manual_seed(77)
    prototypes = torch.randn(3, 10, generator=g) * 1.5
    label = torch.randint(0, 3, (90,), generator=g)
    old = prototypes[label] + torch.randn(90, 10, generator=g)
    new = prototypes[torch.randint(0, 3, (60,), generator=g)] * 1.3 + 0.8 + torch.randn(60, 10, generator=g)

    net = Encoder()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.8)
    criterion = nn.CrossEntropyLoss()
    transport = TransportTarget(every=3)
    for epoch in range(30):
        z_old, out = net(old)
        loss = criterion(out, label)
        if epoch >= 9:
            z_new, _ = net(new)
            loss = loss + 0.2 * (z_new - transport(z_new, z_old)).pow(2).sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("epoch {} loss {:.6f}".format(epoch, loss.item()))
    print("final {:.6f}".format(sum(p.abs().sum().item() for p in net.parameters())))


if __name__ == "__main__":
    main()
