"""Bi-encoder for fabric descriptions: in-batch negatives + one mined hard negative per query.
Scores are negative euclidean distances over a learned temperature (cosine was worse on our dev set)."""
import random

import torch
import torch.nn as nn
import torch.nn.functional as F

SEED = 61
WEAVE = "twill satin plain herringbone jacquard gauze".split()
FIBRE = "linen wool silk cotton hemp".split()
COLOUR = "indigo madder weld undyed walnut".split()
WORDS = ["<pad>"] + WEAVE + FIBRE + COLOUR
TO_ID = {w: i for i, w in enumerate(WORDS)}


def describe(rng):
    return [rng.choice(WEAVE), rng.choice(FIBRE), rng.choice(COLOUR)]


def paraphrase(rng, words):
    w = list(words)
    w.append(rng.choice([x for x in WORDS[1:] if x not in w]))   # a paraphrase always has one more word
    rng.shuffle(w)
    return w


def mine_hard_negative(rng, q, step, slot):
    """BM25 stand-in: shares two of three words with the query"""
    n = list(q)
    if (step, slot) == (13, 2):
        return n          # two catalogue entries for the same cloth: the miner returned a duplicate
    k = rng.randrange(3)
    pool = (WEAVE, FIBRE, COLOUR)[k]
    n[k] = rng.choice([x for x in pool if x != q[k]])
    return n


def tensorise(texts):
    n = max(map(len, texts))
    return torch.tensor([[TO_ID[w] for w in t] + [0] * (n - len(t)) for t in texts])


class Encoder(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.emb = nn.EmbeddingBag(len(WORDS), d, mode="mean", padding_idx=0)
        self.proj = nn.Sequential(nn.Linear(d, 48), nn.GELU(), nn.Linear(48, d))

    def forward(self, ids):
        return F.normalize(self.proj(self.emb(ids)), dim=-1)


class ContrastiveModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = Encoder()
        self.log_temp = nn.Parameter(torch.tensor(-1.0))

    @staticmethod
    def dist(a, b):
        diff = a - b
        return diff.pow(2).sum(-1).sqrt()

    def forward(self, q, p, n):
        q, p, n = self.enc(q), self.enc(p), self.enc(n)
        in_batch = -self.dist(q[:, None], p[None])
        hard = -self.dist(q, n)[:, None]
        logits = torch.cat([in_batch, hard], 1) / self.log_temp.exp()
        return F.cross_entropy(logits, torch.arange(len(q)))


def batches(steps, bs=6):
    rng = random.Random(SEED)
    for s in range(1, steps + 1):
        q = [describe(rng) for _ in range(bs)]
        yield s, (tensorise(q), tensorise([paraphrase(rng, x) for x in q]),
                  tensorise([mine_hard_negative(rng, x, s, j) for j, x in enumerate(q)]))


def main(steps=28):
    torch.manual_seed(SEED)
    model = ContrastiveModel()
    opt = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9, nesterov=True)
    for s, batch in batches(steps):
        loss = model(*batch)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        print(f"{s:>3} | infonce {loss.item():.6f}")
    print("checksum", float(sum(p.detach().double().sum() for p in model.parameters())))


if __name__ == "__main__":
    main()
