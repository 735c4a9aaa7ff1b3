import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(501)
DISTRICTS, EXPERTS, WIDTH = 10, 6, 16


def mail_tray(gen, n):
    """Features read from the address block, and the postal district."""
    district = torch.randint(0, DISTRICTS, (n,), generator=gen)
    code = torch.stack([(district * k) % 7 for k in (1, 2, 3, 5)], -1).float()
    stamp = F.one_hot(district % 4, 4).float()
    return torch.cat([code / 3 - 1, stamp], -1) + 0.3 * torch.randn(n, 8, generator=gen), district


class Clerk(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, 32), nn.Linear(32, DISTRICTS)

    def forward(self, h):
        return self.b(F.gelu(self.a(h)))


class SortingOffice(nn.Module):
    def __init__(self):
        super().__init__()
        self.read = nn.Linear(8, WIDTH)
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.clerks = nn.ModuleList(Clerk() for _ in range(EXPERTS))
        self.register_buffer("on_duty", torch.ones(EXPERTS, dtype=torch.bool))

    def forward(self, x):
        h = torch.tanh(self.read(x))
        score = self.router(h).masked_fill(~self.on_duty, float("-inf"))
        kept = score.topk(2, -1)
        sparse = torch.full_like(score, float("-inf")).scatter(-1, kept.indices, kept.values)
        gate = sparse.softmax(-1)
        out = x.new_zeros(len(x), DISTRICTS)
        for e, clerk in enumerate(self.clerks):
            rows = kept.indices.eq(e).any(-1).nonzero().squeeze(-1)
            out = out.index_add(0, rows, gate[rows, e, None] * clerk(h[rows]))
        return out, gate, kept.indices


gen = torch.Generator().manual_seed(502)
office = SortingOffice()
desk = torch.optim.Adam([*office.read.parameters(), *office.router.parameters()], lr=8e-3)
benches = [torch.optim.Adagrad(c.parameters(), lr=0.08) for c in office.clerks]
absent = {12: 2, 13: 2, 14: 2, 22: 4, 23: 4}

for shift in range(1, 39):
    office.on_duty.fill_(True)
    if shift in absent:
        office.on_duty[absent[shift]] = False
    if shift == 27:
        # the clerk with least work retires; a new one begins, with a clean bench
        office.clerks[slowest] = Clerk()
        benches[slowest] = torch.optim.Adagrad(office.clerks[slowest].parameters(), lr=0.08)
        print(f"clerk {slowest} retires")
    x, y = mail_tray(gen, 6 if shift % 5 == 0 else 48)
    out, gate, chosen = office(x)
    per_letter = F.cross_entropy(out, y, reduction="none")

    served = [per_letter.detach()[chosen.eq(e).any(-1)].mean() for e in range(EXPERTS)]
    served = torch.stack(served)                        # a clerk without letters has no mean
    typical = served.nanmean()
    worry = torch.where(served.isnan(), torch.zeros(()), served - typical)

    load = gate.mean(0)
    loss = per_letter.mean() + 0.02 * EXPERTS * (load * load).sum() + 0.05 * (load * worry).sum()
    for o in [desk, *benches]:
        o.zero_grad()
    loss.backward()
    desk.step()
    for e, bench in enumerate(benches):
        if chosen.eq(e).any():
            bench.step()
    slowest = int(torch.where(office.on_duty, load.detach(), torch.tensor(float("inf"))).argmin())
    table = " ".join("  -- " if s.isnan() else f"{s:.3f}" for s in served)
    print(f"shift {shift:2d} loss {loss.item():.4f} clerks {table}")

print("all weights, absolute:", sum(w.detach().abs().sum().item() for w in office.parameters()))
