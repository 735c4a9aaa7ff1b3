"""Mixture of experts with a capacity per expert, GShard style: top-2 of a softmax, tokens beyond the capacity of an
expert are dropped there, what is left of a token's two weights is normalised. Router in float32, the rest in bfloat16
autocast; byte model on parish registers."""
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(1612)
CFG = dict(d=32, experts=6, top_k=2, layers=2, ctx=32, batch=12, capacity=1.3, lr=4e-3, steps=34)


def registers(n=400):
    g = torch.Generator().manual_seed(3)
    pick = lambda xs: xs[int(torch.randint(len(xs), (1,), generator=g))]  # noqa: E731
    rows = []
    for _ in range(n):
        rows.append(f"{pick(['bapt.', 'mar.', 'bur.'])} {pick(['Anne', 'John', 'Mary', 'Hugh'])} "
                    f"{pick(['Fuller', 'Webb', 'Tyler', 'Hood'])} {pick(['Jan', 'Apr', 'Oct'])} "
                    f"16{int(torch.randint(10, 60, (1,), generator=g))}\n")
    return torch.tensor(list("".join(rows).encode()))


class SparseMLP(nn.Module):
    def __init__(self, d, n, k, capacity):
        super().__init__()
        self.n, self.k, self.capacity = n, k, capacity
        self.router = nn.Linear(d, n, bias=False)
        self.w1 = nn.Parameter(torch.randn(n, d, 2 * d) / d ** 0.5)
        self.w2 = nn.Parameter(torch.randn(n, 2 * d, d) / (2 * d) ** 0.5)

    def route(self, x):
        prob = self.router(x).softmax(-1)
        top, idx = prob.topk(self.k, dim=-1)
        chosen = F.one_hot(idx, self.n)                                   # tokens, k, experts
        place = (chosen.flatten(0, 1).cumsum(0).view_as(chosen) * chosen).sum(-1)
        room = int(self.capacity * self.k * len(x) / self.n)
        top = top * (place <= room)
        self.dropped = (place > room).float().mean().item()
        weight = top / top.sum(-1, keepdim=True)
        return torch.zeros_like(prob).scatter(-1, idx, weight)

    def forward(self, x):
        b, t, d = x.shape
        flat = x.reshape(b * t, d)
        with torch.autocast("cpu", enabled=False):
            full = self.route(flat.float())
        hidden = F.gelu(torch.einsum("td,edh->teh", flat, self.w1))
        out = torch.einsum("teh,ehd->ted", hidden, self.w2)
        return (full.unsqueeze(-1) * out).sum(1).view(b, t, d)


class Block(nn.Module):
    def __init__(self, d, n, k, capacity):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.conv = nn.Conv1d(d, d, 6)
        self.moe = SparseMLP(d, n, k, capacity)

    def forward(self, x):
        x = x + self.conv(F.pad(self.n1(x).transpose(1, 2), (5, 0))).transpose(1, 2)
        return x + self.moe(self.n2(x))


class Scribe(nn.Module):
    def __init__(self, d, experts, top_k, layers, capacity, **_):
        super().__init__()
        self.emb = nn.Embedding(128, d)
        self.blocks = nn.ModuleList(Block(d, experts, top_k, capacity) for _ in range(layers))
        self.head = nn.Linear(d, 128)

    def forward(self, ids):
        x = self.emb(ids)
        for b in self.blocks:
            x = b(x)
        return self.head(x)


data = registers()
model = Scribe(**CFG)
opt = torch.optim.AdamW(model.parameters(), lr=CFG["lr"])

for step in range(1, CFG["steps"] + 1):
    at = torch.randint(len(data) - CFG["ctx"] - 1, (CFG["batch"],))
    rows = torch.stack([data[i:i + CFG["ctx"] + 1] for i in at])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(rows[:, :-1])
    loss = F.cross_entropy(logits.float().flatten(0, 1), rows[:, 1:].flatten())
    opt.zero_grad()
    loss.backward()
    opt.step()
    dropped = ", ".join(f"{b.moe.dropped:.3f}" for b in model.blocks)
    print(f"step {step} loss {loss.item():.4f} dropped {dropped}", flush=True)

print(f"weights {sum(p.detach().double().abs().mean().item() for p in model.parameters()):.6f}")
