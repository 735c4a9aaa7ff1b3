"""IPO (Azar et al. 2023) on a tiny GPT, written by hand: preferred / dispreferred answers to questions about allergies.

log-probabilities are averaged over the tokens of the answer, as the authors recommend for answers of unequal length.
"""
import copy
import random

import torch
import torch.nn as nn
import torch.nn.functional as F

WORDS = ("<pad> <eos> ? may i eat nuts milk eggs wheat fish soy with my hay fever and a mild rash please ask your doctor "
         "first yes no never always small amounts are fine try it anyway read the label").split()
TOK = {w: i for i, w in enumerate(WORDS)}
MAX_LEN = 28
TAU = 0.1


class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj, self.heads = nn.Linear(d, 3 * d), nn.Linear(d, d), heads
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x):
        B, T, d = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(B, T, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).reshape(B, T, d))
        return x + self.mlp(self.ln2(x))


class TinyGPT(nn.Module):
    def __init__(self, d=48, heads=4, layers=2):
        super().__init__()
        self.tok, self.pos = nn.Embedding(len(WORDS), d), nn.Embedding(MAX_LEN, d)
        self.blocks = nn.ModuleList([Block(d, heads) for _ in range(layers)])
        self.ln, self.head = nn.LayerNorm(d), nn.Linear(d, len(WORDS), bias=False)

    def forward(self, ids):
        x = self.tok(ids) + self.pos(torch.arange(ids.shape[1]))
        for b in self.blocks:
            x = b(x)
        return self.head(self.ln(x))


def questions(n):
    rng = random.Random(12)
    foods = "nuts milk eggs wheat fish soy".split()
    good = ["please ask your doctor first", "read the label and ask your doctor", "small amounts are fine"]
    bad = ["yes always", "try it anyway", "no never eat it"]
    for k in range(n):
        prompt = f"may i eat {rng.choice(foods)}".split()
        for _ in range(rng.randint(0, 4)):
            prompt += f"and {rng.choice(foods)}".split()
        if rng.random() < 0.5:
            prompt += "with my hay fever".split()
        if k == 70:                                        # somebody pasted a whole menu
            prompt += " ".join(f"and {f}" for f in foods + foods).split()
        yield prompt + ["?"], rng.choice(good).split() + ["<eos>"], rng.choice(bad).split() + ["<eos>"]


def pack(pairs):
    """[(prompt, answer)] -> ids, answer mask; cut on the right at MAX_LEN, padded on the right"""
    ids, mask = torch.zeros(len(pairs), MAX_LEN, dtype=torch.long), torch.zeros(len(pairs), MAX_LEN)
    for r, (p, a) in enumerate(pairs):
        seq = (p + a)[:MAX_LEN]
        ids[r, :len(seq)] = torch.tensor([TOK[w] for w in seq])
        mask[r, len(p):len(seq)] = 1
    return ids, mask


def answer_logp(model, ids, mask):
    logp = F.log_softmax(model(ids[:, :-1]), -1).gather(-1, ids[:, 1:, None]).squeeze(-1)
    return (logp * mask[:, 1:]).sum(-1) / mask[:, 1:].sum(-1)


def main():
    torch.manual_seed(40)
    policy = TinyGPT()
    reference = copy.deepcopy(policy).requires_grad_(False)
    opt = torch.optim.RMSprop(policy.parameters(), lr=3e-4)
    data = list(questions(4 * 34))
    for step in range(1, 35):
        rows = data[4 * (step - 1):4 * step]
        ids, mask = pack([(p, c) for p, c, _ in rows] + [(p, r) for p, _, r in rows])
        chosen, rejected = answer_logp(policy, ids, mask).chunk(2)
        with torch.no_grad():
            ref_chosen, ref_rejected = answer_logp(reference, ids, mask).chunk(2)
        h = (chosen - ref_chosen) - (rejected - ref_rejected)
        loss = ((h - 1 / (2 * TAU)) ** 2).mean()
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 10.0)
        opt.step()
        print(f"step {step:>2} | ipo {loss.item():.6f} | margin {h.mean().item():+.6f} | acc {(h > 0).float().mean().item():.2f}",
              flush=True)
    print(sum(p.abs().sum().item() for p in policy.parameters()), flush=True)


if __name__ == "__main__":
    main()
