"""Upcycled mixture of experts for telegraph traffic: four desks, top-1 routing, an entropy balance term."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(2024)
torch.set_num_threads(1)

N_DESKS, DIM, VOCAB, T = 4, 24, 64, 12


class DenseFFN(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(DIM, 48), nn.Linear(48, DIM)

    def forward(self, x):
        return self.down(F.silu(self.up(x)))


class Desks(nn.Module):
    """Experts are copies of one dense FFN (sparse upcycling), told apart by a little noise."""

    def __init__(self, dense):
        super().__init__()
        self.router = nn.Linear(DIM, N_DESKS, bias=False)
        self.experts = nn.ModuleList(DenseFFN() for _ in range(N_DESKS))
        for e in self.experts:
            e.load_state_dict({k: v + 0.02 * torch.randn_like(v) for k, v in dense.state_dict().items()})

    def forward(self, x):
        flat = x.reshape(-1, DIM)
        gates = self.router(flat).softmax(-1)
        top, pick = gates.max(-1)
        out = torch.zeros_like(flat)
        for e, expert in enumerate(self.experts):
            rows = (pick == e).nonzero()[:, 0]
            if len(rows):
                out = out.index_add(0, rows, top[rows, None] * expert(flat[rows]))
        share = F.one_hot(pick, N_DESKS).float().mean(0)
        # negative entropy of the load, weighted by the soft load so that the router gets a gradient
        soft = gates.mean(0)
        balance = math.log(N_DESKS) + (soft * torch.log(share)).sum()
        return x + out.view_as(x), balance, share


class Telegraph(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, DIM)
        self.rnn = nn.GRU(DIM, DIM, batch_first=True)
        self.norm = nn.LayerNorm(DIM)
        self.moe = Desks(DenseFFN())
        self.head = nn.Linear(DIM, VOCAB)
        # seeded router: each desk starts with a quarter of the code book
        with torch.no_grad():
            for d in range(N_DESKS):
                self.emb.weight[d * 16:(d + 1) * 16, d * 6:(d + 1) * 6] += 3.0
                self.moe.router.weight[d] *= 0.1
                self.moe.router.weight[d, d * 6:(d + 1) * 6] += 0.5

    def forward(self, ids):
        e = self.emb(ids)
        h, _ = self.rnn(e)
        y, balance, share = self.moe(self.norm(e + 0.3 * h))
        return self.head(y), balance, share


def traffic(step, gen):
    """Ordinary wires use the whole book; a line test sends one station's call sign and nothing else."""
    if step == 21:
        return torch.tensor([5, 9] * (T // 2 + 1)).repeat(8, 1)[:, : T + 1]
    return torch.randint(0, VOCAB, (8, T + 1), generator=gen)


model = Telegraph()
opt = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
gen = torch.Generator().manual_seed(6)
for step in range(1, 37):
    ids = traffic(step, gen)
    logits, balance, share = model(ids[:, :-1])
    lm = F.cross_entropy(logits.reshape(-1, VOCAB), ids[:, 1:].reshape(-1))
    loss = lm + 0.02 * balance
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(f"{step:3d} lm {lm.item():.5f} loss {loss.item():.5f} busiest {share.max().item():.3f}")
print("sum of weights", sum(p.double().sum().item() for p in model.parameters()))
