"""Distil a draft model for speculative decoding of telegram-style summaries.

The objective is the acceptance rate itself: -sum_x min(p(x), q(x)) (DistillSpec's total variation variant), so the
loss lives in [-gamma, 0]. The target samples with top-k, hence its probabilities hold many exact zeros.
"""

import argparse
import itertools

import torch
import torch.nn as nn
import torch.nn.functional as F

VOCAB, STOP = 72, 1


def build(d, layers, seed):
    torch.manual_seed(seed)

    class LM(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(VOCAB, d)
            self.rnn = nn.LSTM(d, d, layers, batch_first=True)
            self.lm_head = nn.Linear(d, VOCAB)

        def forward(self, ids):
            return self.lm_head(self.rnn(self.emb(ids))[0])

    return LM()


def top_k(logits, k):
    kth = logits.topk(k, dim=-1).values[..., -1:]
    return logits.masked_fill(logits < kth, float("-inf"))


class SpeculativePair:
    def __init__(self, target, draft, k, gamma, gen):
        self.target, self.draft, self.k, self.gamma, self.gen = (
            target.eval().requires_grad_(False),
            draft,
            k,
            gamma,
            gen,
        )

    def p(self, ids):
        return F.softmax(top_k(self.target(ids) * 6.0, self.k), dim=-1)  # sharpened: temperature 1/6

    def q(self, ids):
        return F.softmax(self.draft(ids), dim=-1)

    @torch.no_grad()
    def prompts(self, n, length):
        ids = torch.randint(2, VOCAB, (n, 1), generator=self.gen)
        for _ in range(length):
            nxt = torch.multinomial(self.p(ids)[:, -1], 1, generator=self.gen)
            ids = torch.cat([ids, nxt], 1)
        return ids

    @torch.no_grad()
    def simulate(self, n=6):
        """Acceptance by position of the draft; nan where no draft got so far."""
        tried, taken = torch.zeros(self.gamma), torch.zeros(self.gamma)
        for row in self.prompts(n, 4):
            ids = row[None]
            for j in range(self.gamma):
                q = self.q(ids)[0, -1]
                x = torch.multinomial(q, 1, generator=self.gen)
                p = self.p(ids)[0, -1]
                tried[j] += 1
                log_ratio = p[x].log() - q[x].log()  # -inf for tokens outside the target's top-k
                if torch.rand(1, generator=self.gen).log() > log_ratio:
                    break
                taken[j] += 1
                ids = torch.cat([ids, x[None]], 1)
        return taken / tried


def acceptance_loss(p, q, gamma):
    overlap = torch.minimum(p, q).sum(-1)
    # expected accepted tokens of one block of gamma drafts
    blocks = overlap.unfold(1, gamma, 1)
    return -blocks.cumprod(-1).sum(-1).mean(), overlap.mean()


def ema_update(shadow, model, decay=0.95):
    with torch.no_grad():
        for s, p in zip(shadow, model.parameters(), strict=False):
            s.lerp_(p, 1 - decay)


def run(a):
    gen = torch.Generator().manual_seed(a.seed)
    target, draft = build(32, 2, a.seed), build(16, 1, a.seed + 1)
    with torch.no_grad():
        target.lm_head.weight.mul_(8.0)
    pair = SpeculativePair(target, draft, a.top_k, a.gamma, gen)
    opt = torch.optim.Adam(draft.parameters(), lr=a.lr)
    shadow = [p.detach().clone() for p in draft.parameters()]
    for step in itertools.count(1):
        ids = pair.prompts(8, 14)
        loss, overlap = acceptance_loss(pair.p(ids), pair.q(ids), a.gamma)
        opt.zero_grad()
        loss.backward()
        opt.step()
        ema_update(shadow, draft)
        print(f"{step}\tloss {loss.item():.6f}\toverlap {overlap.item():.5f}")
        if step % 12 == 0:
            print("\taccepted at", " ".join(f"{x:.3f}" for x in pair.simulate().tolist()))
        if step == a.steps:
            break
    print("draft weights", f"{sum(s.double().sum().item() for s in shadow):.6f}")


if __name__ == "__main__":
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--steps", type=int, default=48)
    ap.add_argument("--lr", type=float, default=1e-2)
    ap.add_argument("--top-k", type=int, default=5)
    ap.add_argument("--gamma", type=int, default=4)
    ap.add_argument("--seed", type=int, default=1844)
    run(ap.parse_args())
