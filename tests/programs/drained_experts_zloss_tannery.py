"""Sparse experts over tannery notes. Router with z-loss, expert drain (maintenance), and revival of idle experts."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(64)
D, E, K, VOCAB, T = 24, 6, 2, 32, 10
DRAIN = {range(8, 16): [2], range(20, 30): [0, 5]}          # update -> experts out of service


def drained(step):
    for window, experts in DRAIN.items():
        if step in window:
            return experts
    return []


class Router(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(D, E, bias=False)

    def forward(self, x, out):
        logits = self.proj(x) * 4.0
        if self.training:
            logits = logits + 0.1 * torch.randn_like(logits)
        bar = torch.zeros(E)
        bar[out] = float("-inf")                             # a drained expert is never picked
        logits = logits + bar
        z = torch.logsumexp(logits, -1)
        probs = logits.softmax(-1)
        weight, index = probs.topk(K, -1)
        return weight / weight.sum(-1, keepdim=True), index, probs, z.square().mean()


class SparseBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = Router()
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(D, 2 * D), nn.GELU(), nn.Linear(2 * D, D)) for _ in range(E))
        self.register_buffer("usage", torch.full((E,), 1.0 / E))

    def forward(self, x, out):
        flat = x.reshape(-1, D)
        weight, index, probs, z = self.router(flat, out)
        y = torch.zeros_like(flat)
        share = torch.zeros(E)
        for e, expert in enumerate(self.experts):
            token, slot = (index == e).nonzero(as_tuple=True)
            share[e] = token.numel() / index.numel()
            if token.numel():
                y = y.index_add(0, token, expert(flat[token]) * weight[token, slot, None])
        self.usage.mul_(0.8).add_(share, alpha=0.2)
        balance = E * (probs.mean(0) * share).sum()
        return x + y.view_as(x), balance, z

    @torch.no_grad()
    def revive(self, out):
        """An expert that gets nearly nothing is overwritten with a noisy copy of the busiest one."""
        busy = int(self.usage.argmax())
        for e in range(E):
            if e not in out and self.usage[e] < 0.04:
                for mine, theirs in zip(self.experts[e].parameters(), self.experts[busy].parameters()):
                    mine.copy_(theirs + 0.01 * torch.randn_like(theirs))
                self.usage[e] = 1.0 / E
                print(f"  revived expert {e} from {busy}")


class Notes(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, D)
        self.mix = nn.GRU(D, D, batch_first=True)
        self.moe = SparseBlock()
        self.head = nn.Linear(D, VOCAB)

    def forward(self, ids, out):
        h, balance, z = self.moe(self.mix(self.emb(ids))[0], out)
        return self.head(h), balance, z


def vats():
    g = torch.Generator().manual_seed(2)
    while True:
        start = torch.randint(0, VOCAB, (12, 1), generator=g)
        stride = torch.randint(1, 4, (12, 1), generator=g)
        yield (start + stride * torch.arange(T + 1)) % VOCAB


model = Notes()
opt = torch.optim.AdamW(model.parameters(), lr=4e-3)
for step, ids in zip(range(1, 46), vats()):
    out = drained(step)
    logits, balance, z = model(ids[:, :-1], out)
    nll = F.cross_entropy(logits.reshape(-1, VOCAB), ids[:, 1:].reshape(-1))
    loss = nll + 0.05 * balance + 0.001 * z
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(f"{step:2d} loss {loss.item():.5f} nll {nll.item():.5f} balance {balance.item():.3f} z {z.item():.3f} out {out}")
    if step % 6 == 0:
        model.moe.revive(out)
print(f"sum {sum(p.detach().double().sum().item() for p in model.parameters()):.5f}")
