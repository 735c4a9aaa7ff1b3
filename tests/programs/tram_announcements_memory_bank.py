"""Two-tower retrieval of tram announcements: passenger question -> announcement, in-batch negatives, a memory bank."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


def parse():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rounds", type=int, default=48)
    ap.add_argument("--batch", type=int, default=12)
    ap.add_argument("--bank", type=int, default=96)
    ap.add_argument("--bank-from", type=int, default=17, help="round at which the bank is used")
    ap.add_argument("--tau", type=float, default=0.08)
    ap.add_argument("--seed", type=int, default=311)
    return ap.parse_args()


class Tower(nn.Module):
    def __init__(self, vocab=220, dim=32):
        super().__init__()
        self.emb = nn.EmbeddingBag(vocab, dim, mode="mean", padding_idx=0)
        self.mlp = nn.Sequential(nn.Linear(dim, 48), nn.GELU(), nn.Linear(48, dim))

    def forward(self, ids):
        h = self.emb(ids)
        return F.normalize(h + self.mlp(h), dim=-1)


class Bank:
    """Ring of (vector, announcement id). Slots without an owner have id -1."""

    def __init__(self, size, dim):
        self.vec = torch.zeros(size, dim)
        self.owner = torch.full((size,), -1)
        self.at = 0

    def push(self, vec, owner):
        for v, o in zip(vec, owner, strict=False):
            self.vec[self.at] = v
            self.owner[self.at] = o
            self.at = (self.at + 1) % len(self.owner)

    @property
    def fill(self):
        return (self.owner >= 0).float().mean().item()


def make_corpus(g, n=40):
    return torch.randint(1, 220, (n, 6), generator=g)


def draw(corpus, batch, g):
    # small catalogue: the same announcement may be in a batch twice, which makes false negatives
    owner = torch.randint(0, len(corpus), (batch,), generator=g)
    docs = corpus[owner].clone()
    keep = torch.rand(docs.shape, generator=g) < 0.6
    noise = torch.randint(1, 220, docs.shape, generator=g)
    questions = torch.where(keep, docs, noise)
    return questions, docs, owner


def scores(q, d, owner, bank, tau, use_bank):
    logits = q @ d.T / tau
    twins = owner[:, None] == owner[None, :]
    twins.fill_diagonal_(False)
    logits = logits.masked_fill(twins, float("-inf"))
    if use_bank:
        far = q @ bank.vec.T / tau
        blocked = (bank.owner[None, :] == owner[:, None]) | (bank.owner < 0)[None, :]
        far = far.masked_fill(blocked, float("-inf"))
        logits = torch.cat([logits, far], dim=1)
    return logits


def main():
    a = parse()
    torch.manual_seed(a.seed)
    g = torch.Generator().manual_seed(a.seed + 1)
    corpus = make_corpus(g)
    asks, says = Tower(), Tower()
    opt = torch.optim.AdamW([*asks.parameters(), *says.parameters()], lr=4e-3)
    bank = Bank(a.bank, 32)
    for r in range(1, a.rounds + 1):
        questions, docs, owner = draw(corpus, a.batch, g)
        q, d = asks(questions), says(docs)
        use_bank = r >= a.bank_from
        logits = scores(q, d, owner, bank, a.tau, use_bank)
        loss = F.cross_entropy(logits, torch.arange(a.batch))
        opt.zero_grad()
        loss.backward()
        opt.step()
        with torch.no_grad():
            if r >= 6:
                bank.push(d.detach(), owner)
            hard = logits.detach().clone()
            hard[:, : a.batch].fill_diagonal_(float("-inf"))
            margin = (logits.diagonal() - hard.max(dim=1).values).mean()
            # recall among questions with a bank competitor; nothing to average before the bank is on
            sel = torch.isfinite(hard[:, a.batch :]).any(dim=1) if use_bank else torch.zeros(a.batch, dtype=torch.bool)
            r1 = (logits.argmax(1) == torch.arange(a.batch)).float()[sel].mean()
        print(
            f"round {r:02d} loss {loss.item():.6f} margin {margin.item():+.4f} bank {bank.fill:.2f} "
            f"r@1 {r1.item():.3f}",
            flush=True,
        )
    print(f"weights {sum(p.abs().sum().item() for p in [*asks.parameters(), *says.parameters()]):.6f}", flush=True)


if __name__ == "__main__":
    main()
