"""Word vectors from the letters of an allotment society: skip-gram with negative sampling."""
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

TOPICS = ["soil compost manure lime loam clay digging spade", "beans peas marrow leeks kale cabbage rows sowing",
          "fence gate padlock key path hedge trimming neighbour", "committee meeting minutes vote treasurer chair rent dues",
          "frost wind rain drought watering hose butt barrel"]
COMMON = "the a of and to in we our is was".split()
VOCAB = COMMON + " ".join(TOPICS).split()
INDEX = {w: i for i, w in enumerate(VOCAB)}


def letters(rng, n_words=6000):
    words = []
    while len(words) < n_words:
        topic = TOPICS[rng.integers(len(TOPICS))].split()
        for _ in range(12):
            pool = COMMON if rng.random() < 0.45 else topic
            words.append(INDEX[pool[rng.integers(len(pool))]])
    return np.array(words)


class SkipGram(nn.Module):
    def __init__(self, n, dim=16):
        super().__init__()
        self.centre = nn.Embedding(n, dim, sparse=True)
        self.context = nn.Embedding(n, dim, sparse=True)
        nn.init.uniform_(self.centre.weight, -0.5 / dim, 0.5 / dim)
        nn.init.normal_(self.context.weight, std=0.02)

    def forward(self, c, pos, neg):
        v = self.centre(c)
        seen = (v * self.context(pos)).sum(-1)
        drawn = torch.einsum("bd,bkd->bk", v, self.context(neg))
        return -(F.logsigmoid(seen).sum() + F.logsigmoid(-drawn).sum())


def main():
    torch.manual_seed(17)
    rng = np.random.default_rng(18)
    text = letters(rng)
    counts = np.bincount(text, minlength=len(VOCAB)) ** 0.75
    noise = counts / counts.sum()
    model = SkipGram(len(VOCAB))
    sgd = torch.optim.SGD(model.parameters(), lr=0.23)
    batch = 128
    for step in range(1, 41):
        at = rng.integers(3, len(text) - 3, batch)
        away = rng.integers(1, 4, batch) * rng.choice([-1, 1], batch)
        neg = rng.choice(len(VOCAB), (batch, 5), p=noise)
        c, pos, neg = (torch.from_numpy(np.asarray(v)) for v in (text[at], text[at + away], neg))
        sgd.zero_grad()
        loss = model(c, pos, neg)
        loss.backward()
        sgd.step()
        print(f"step {step} loss per pair {loss.item() / batch:.4f}")
    w = model.centre.weight.detach()
    print("nearest to frost:", VOCAB[int((w @ w[INDEX['frost']]).topk(2).indices[-1])])
    print("sum of squares", sum(p.detach().double().pow(2).sum().item() for p in model.parameters()))


if __name__ == "__main__":
    main()
