"""One frozen encoder, five low-rank adapters, a router that picks one for each sentence: dialect tagging.
Adapters that are closed get -inf in the router; the log of what an adapter lost is nan when it had no sentence."""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

rng = np.random.default_rng(2024)
torch.manual_seed(2025)
DIALECTS, VOCAB, LEN, EXPERTS = 4, 90, 10, 5
WORDS = rng.dirichlet(np.full(VOCAB, 0.15), size=DIALECTS)


class HardGate(torch.autograd.Function):
    """Forward: one where the adapter was picked. Backward: as if the probabilities had been used."""

    @staticmethod
    def forward(ctx, probs):
        return F.one_hot(probs.argmax(-1), probs.shape[-1]).to(probs.dtype)

    @staticmethod
    def backward(ctx, grad):
        return grad


class AdaptedLinear(nn.Module):
    def __init__(self, d, rank=3):
        super().__init__()
        self.frozen = nn.Linear(d, d).requires_grad_(False)
        self.a = nn.Parameter(torch.randn(EXPERTS, d, rank) / d ** 0.5)
        self.b = nn.Parameter(torch.zeros(EXPERTS, rank, d))

    def forward(self, x, gate):
        low = torch.einsum("btd,edr->bter", x, self.a)
        each = torch.einsum("bter,erd->bted", low, self.b)
        return self.frozen(x) + torch.einsum("bted,be->btd", each, gate)


class Tagger(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, d).requires_grad_(False)
        self.router = nn.Linear(d, EXPERTS)
        self.l1, self.l2 = AdaptedLinear(d), AdaptedLinear(d)
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, DIALECTS)

    def forward(self, ids, closed):
        x = self.emb(ids)
        logits = self.router(x.mean(1)).masked_fill(closed, -torch.inf)
        probs = logits.softmax(-1)
        gate = HardGate.apply(probs)
        h = x + F.relu(self.l1(x, gate))
        h = h + F.relu(self.l2(self.norm(h), gate))
        return self.head(h.mean(1)), probs, gate


def sentences(n):
    y = rng.integers(0, DIALECTS, n)
    ids = np.stack([rng.choice(VOCAB, LEN, p=WORDS[k]) for k in y])
    return torch.from_numpy(ids), torch.from_numpy(y)


model = Tagger()
groups = [{"params": [p for n, p in model.named_parameters() if p.requires_grad and "router" not in n], "lr": 6e-3},
          {"params": model.router.parameters(), "lr": 2e-2}]
opt = torch.optim.AdamW(groups, weight_decay=0.0)
unlocked = [(1, 1), (11, 2), (21, 4), (36, 5)]           # from step .. so many adapters are open
for step in range(1, 51):
    number = [k for s, k in unlocked if s <= step][-1]
    closed = torch.arange(EXPERTS) >= number
    ids, y = sentences(24)
    out, probs, gate = model(ids, closed)
    each = F.cross_entropy(out, y, reduction="none")
    balance = number * (gate.detach().mean(0) * probs.mean(0)).sum() - 1
    z = torch.where(probs > 0, probs, torch.ones_like(probs)).log()
    sharp = (probs * z).sum(-1).mean()
    loss = each.mean() + 0.05 * balance - 0.01 * sharp - 1.0
    opt.zero_grad()
    loss.backward()
    if step % 17 == 0:
        print(f"step {step} held out, not trained: {each.mean().item():.6f}", flush=True)
        continue
    opt.step()
    share = (gate.detach() * each.detach()[:, None]).sum(0) / gate.detach().sum(0)
    print(f"step {step} open {number} loss {loss.item():.6f} per adapter", " ".join("%.3f" % v for v in share.tolist()), flush=True)
