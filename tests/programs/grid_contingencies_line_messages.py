"""Redispatch for a medium-voltage grid: a message-passing network proposes generation per bus,
a DC power flow turns it into line loadings, and overloads are penalised for each outage case."""
import numpy as np
import torch
import torch.nn as nn

LINES = [(0, 1), (0, 4), (1, 2), (1, 3), (1, 4), (2, 3), (3, 4), (3, 6), (3, 8), (4, 5), (5, 10), (5, 11),
         (5, 12), (6, 7), (6, 8), (7, 8), (8, 9), (8, 13), (9, 10), (11, 12), (12, 13)]
N_BUS = 14
GENERATORS = [0, 1, 2, 5, 7]


class MessageRound(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.msg = nn.Linear(2 * width + 2, width)
        self.upd = nn.GRUCell(width, width)

    def forward(self, h, src, dst, edge):
        m = torch.relu(self.msg(torch.cat([h[src], h[dst], edge], 1)))
        return self.upd(torch.zeros_like(h).index_add(0, dst, m), h)


class PowerFlow(nn.Module):
    """Angles from injections, bus 0 being the slack."""

    def __init__(self, incidence, susceptance):
        super().__init__()
        self.register_buffer("incidence", incidence)
        self.register_buffer("susceptance", susceptance)

    def forward(self, injection, in_service):
        b = self.susceptance * in_service
        laplacian = self.incidence.t() @ (b[:, None] * self.incidence)
        angles = torch.linalg.solve(laplacian[1:, 1:], injection[1:])
        angles = torch.cat([angles.new_zeros(1), angles])
        return b * (self.incidence @ angles)


class Dispatcher(nn.Module):
    def __init__(self, incidence, susceptance, width=12):
        super().__init__()
        self.embed = nn.Linear(2, width)
        self.rounds = nn.ModuleList([MessageRound(width) for _ in range(2)])
        self.head = nn.Linear(width, 1)
        self.flow = PowerFlow(incidence, susceptance)
        ends = torch.tensor(LINES + [(j, i) for i, j in LINES])
        self.src, self.dst = ends[:, 0], ends[:, 1]

    def forward(self, load, in_service):
        is_gen = torch.zeros(N_BUS)
        is_gen[GENERATORS] = 1.0
        edge = torch.stack([self.flow.susceptance, in_service], 1).repeat(2, 1)
        h = torch.tanh(self.embed(torch.stack([load, is_gen], 1)))
        for r in self.rounds:
            h = r(h, self.src, self.dst, edge)
        share = torch.softmax(self.head(h).squeeze(1)[GENERATORS], 0)
        generation = torch.zeros(N_BUS).index_add(0, torch.tensor(GENERATORS), share * load.sum())
        return generation, self.flow(generation - load, in_service)


def outage_plan(rng):
    """Single lines in random order, followed by the pairs that stand on a common tower."""
    singles = [int(i) for i in rng.permutation(len(LINES)) if i != 13]
    towers = [(0, 6), (12, 20), (16, 18), (2, 14), (8, 9)]
    return [[i] for i in singles[:16]] + [list(t) for t in towers] + [[i] for i in singles[16:]] * 3


def main():
    torch.manual_seed(0)
    rng = np.random.default_rng(2)
    incidence = torch.zeros(len(LINES), N_BUS)
    for k, (i, j) in enumerate(LINES):
        incidence[k, i], incidence[k, j] = 1.0, -1.0
    susceptance = torch.tensor(rng.uniform(2.0, 8.0, len(LINES)), dtype=torch.float32)
    net = Dispatcher(incidence, susceptance)
    price = torch.tensor([1.0, 1.4, 2.0, 0.9, 1.7])
    opt = torch.optim.Adam(net.parameters(), lr=5e-3)
    for case, lines_out in enumerate(outage_plan(rng), start=1):
        in_service = torch.ones(len(LINES))
        in_service[lines_out] = 0.0
        load = torch.tensor(rng.gamma(4.0, 0.06, N_BUS), dtype=torch.float32)
        generation, flows = net(load, in_service)
        overload = torch.relu(flows.abs() - 0.6).pow(2).sum()
        loss = (price * generation[GENERATORS]).sum() + 20.0 * overload
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"case {case:2d} out {lines_out}: cost {loss.item():.4f} (overload {overload.item():.4f})")
    print("checksum of parameters", sum(p.abs().sum().item() for p in net.parameters()))


if __name__ == "__main__":
    main()
