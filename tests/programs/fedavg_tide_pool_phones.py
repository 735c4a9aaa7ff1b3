"""Federated averaging, all clients in one process: phones of volunteers classify tide-pool animals.

The phones train functionally (no state is kept there); the server treats the weighted mean of
the differences as a gradient. Some rounds nobody is online, and some phones have nothing to test on.
"""
import logging
import math
import sys
from dataclasses import dataclass

import torch
from torch import nn
import torch.nn.functional as F
from torch.func import functional_call, grad

logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(message)s")
log = logging.getLogger("server")


@dataclass
class Phone:
    x: torch.Tensor
    y: torch.Tensor
    test_x: torch.Tensor
    test_y: torch.Tensor


class Net(nn.Module):
    def __init__(self, d=14, classes=6):
        super().__init__()
        self.a, self.b = nn.Linear(d, 40), nn.Linear(40, classes)
        self.norm = nn.GroupNorm(4, 40)

    def forward(self, x):
        return self.b(F.relu(self.norm(self.a(x))))


def make_phones(n, g):
    centre = 1.3 * torch.randn(6, 14, generator=g)
    phones = []
    for i in range(n):
        prior = torch.rand(6, generator=g) ** 3 + 0.01
        size = int(torch.randint(0, 40, (1,), generator=g)) + 4
        y = torch.multinomial(prior, size, replacement=True, generator=g)
        x = centre[y] + torch.randn(size, 14, generator=g)
        k = size if i % 4 == 3 else int(0.8 * size)       # every fourth keeps nothing for the test
        phones.append(Phone(x[:k], y[:k], x[k:], y[k:]))
    return phones


def local_loss(params, net, x, y):
    return F.cross_entropy(functional_call(net, params, (x,)), y)


def train_on_phone(net, params, phone, lr=0.1, epochs=3):
    w = dict(params)
    for _ in range(epochs):
        d = grad(local_loss)(w, net, phone.x, phone.y)
        w = {k: w[k] - lr * d[k] for k in w}
    return {k: params[k] - w[k] for k in w}


def main():
    g = torch.Generator().manual_seed(5150)
    torch.manual_seed(5150)
    phones = make_phones(20, g)
    net = Net()
    server = torch.optim.SGD(net.parameters(), lr=1.0, momentum=0.5)
    for rnd in range(1, 41):
        p_online = 0.03 if rnd % 9 == 0 else 0.35          # low tide at night
        online = (torch.rand(20, generator=g) < p_online).nonzero().flatten().tolist()
        params = {k: v.detach() for k, v in net.named_parameters()}
        sizes = torch.tensor([float(len(phones[i].y)) for i in online])
        share = sizes.sum() / torch.tensor(float(len(online)))     # mean size; 0/0 if nobody answers
        acc = torch.stack([(net(p.test_x).argmax(1) == p.test_y).float().mean() for p in phones])
        worst = acc.nan_to_num(math.inf).min()
        if torch.isnan(share):
            log.info(f"round {rnd}: nobody online, mean size {share.item()}, accuracy {acc.nanmean().item():.5f}")
            continue
        deltas = [train_on_phone(net, params, phones[i]) for i in online]
        server.zero_grad()
        for name, p in net.named_parameters():
            p.grad = sum(s * d[name] for s, d in zip(sizes, deltas)) / sizes.sum()
        server.step()
        with torch.no_grad():
            total = sum(local_loss(params, net, ph.x, ph.y) for ph in phones) / len(phones)
        log.info(f"round {rnd}: {len(online)} phones, loss before {total.item():.6f}, plain mean accuracy "
                 f"{acc.mean().item():.4f}, over phones with a test {acc.nanmean().item():.5f}, worst {worst.item():.4f}")
    log.info(f"weights {sum(p.detach().double().abs().sum().item() for p in net.parameters()):.8f}")


if __name__ == "__main__":
    main()
