"""Letter model for filling crossword grids. Sampled softmax with the log-Q correction (Jean et al.),
because the real alphabet has digraph tiles and is a few hundred symbols; every 4th step the full softmax."""
import string
from typing import NamedTuple, Optional

import torch
from torch import nn
import torch.nn.functional as F

TILES = list(string.ascii_uppercase) + [a + b for a in "SCTPW" for b in "HRLN"]
INDEX = {t: i for i, t in enumerate(TILES)}
BASE = """SHARE STONE CHURN LEMON RIVER ANGEL BUGLE FJORD CLOAK MANGO PRISM WHALE VIXEN DOZEN QUERY KNAVE
TRAIL SLATE THORN PLUMB GRAVY HOUND""".replace("FJORD", "FIORD").split()
THEMES = {8: "JAZZY", 13: "GUMBO", 16: "JUMBO", 22: "BANJO"}


def tiles(word):
    out, i = [], 0
    while i < len(word):
        n = 2 if word[i:i + 2] in INDEX else 1
        out.append(INDEX[word[i:i + n]])
        i += n
    return out


class Clues(NamedTuple):
    context: torch.Tensor
    target: torch.Tensor
    theme: Optional[str] = None

    def to(self, device):
        return Clues(self.context.to(device), self.target.to(device), self.theme)


def collate(words, theme):
    ctx, tgt = [], []
    for w in words:
        t = tiles(w)
        for k in range(1, len(t)):
            ctx.append(([len(TILES)] * 3 + t[:k])[-3:])
            tgt.append(t[k])
    return Clues(torch.tensor(ctx), torch.tensor(tgt), theme)


class LetterNet(nn.Module):
    def __init__(self, dim=24):
        super().__init__()
        self.emb = nn.Embedding(len(TILES) + 1, dim)
        self.mix = nn.Sequential(nn.Linear(3 * dim, 48), nn.Tanh(), nn.Linear(48, dim))
        self.table = nn.Parameter(torch.randn(len(TILES), dim) * 0.1)
        self.bias = nn.Parameter(torch.zeros(len(TILES)))

    def forward(self, context):
        return self.mix(self.emb(context).flatten(1))


class Proposal:
    """Unigram distribution of the tiles in the base dictionary."""

    def __init__(self, words, seed):
        counts = torch.zeros(len(TILES))
        for w in words:
            for t in tiles(w):
                counts[t] += 1
        self.q = counts / counts.sum()
        self.gen = torch.Generator().manual_seed(seed)

    def draw(self, k):
        return torch.multinomial(self.q, k, replacement=False, generator=self.gen)


def sampled_loss(net, h, target, proposal, k=12):
    neg = proposal.draw(k)
    ids = torch.cat([target, neg])
    correction = torch.log(k * proposal.q[ids])
    pos = (h * net.table[target]).sum(1) + net.bias[target] - correction[: len(target)]
    rest = h @ net.table[neg].T + net.bias[neg] - correction[len(target):]
    rest = rest.masked_fill(neg[None] == target[:, None], -1e4)   # accidental hits
    logits = torch.cat([pos[:, None], rest], 1)
    return F.cross_entropy(logits, torch.zeros(len(target), dtype=torch.long))


def full_loss(net, h, target):
    return F.cross_entropy(h @ net.table.T + net.bias, target)


def main():
    torch.manual_seed(64)
    net, proposal = LetterNet(), Proposal(BASE, seed=3)
    opt = torch.optim.Adagrad(net.parameters(), lr=0.05)
    print(f"{len(TILES)} tiles, {len(BASE)} words")
    for step in range(1, 37):
        words = [BASE[(5 * step + 3 * j) % len(BASE)] for j in range(6)]
        theme = THEMES.get(step)
        batch = collate(words + [theme] if theme else words, theme).to("cpu")
        h = net(batch.context)
        loss = full_loss(net, h, batch.target) if step % 4 == 0 else sampled_loss(net, h, batch.target, proposal)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"{step:3d} {'full' if step % 4 == 0 else 'sampled':8s}{loss.item():.6f} {batch.theme or ''}".rstrip())
    print("sum of weights", f"{sum(p.detach().double().sum() for p in net.parameters()).item():.6f}")


if __name__ == "__main__":
    main()
