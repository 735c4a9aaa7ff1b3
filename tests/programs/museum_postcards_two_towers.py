"""Two-tower matching of museum postcards and their captions (a very small CLIP).

Image tower: convolutions without biases, then a projection. Text tower: mean of word vectors.
"""
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(404)
torch.use_deterministic_algorithms(True)

PALETTE = {"red": (.9, .1, .1), "green": (.1, .8, .2), "blue": (.1, .2, .9), "sepia": (.7, .5, .3)}
MOTIFS = ["pier", "tower", "bridge", "meadow"]
WORDS = ["<pad>"] + list(PALETTE) + MOTIFS + ["left", "right", "old", "new"]
IX = {w: i for i, w in enumerate(WORDS)}
UNSCANNED = 149      # catalogue number of the card whose scan came out black


def paint(motif, colour, side, noise):
    card = torch.zeros(3, 16, 16)
    r = {"pier": (slice(10, 12), slice(0, 14)), "tower": (slice(2, 14), slice(6, 9)),
         "bridge": (slice(6, 8), slice(0, 16)), "meadow": (slice(9, 16), slice(0, 16))}[motif]
    card[:, r[0], r[1]] = torch.tensor(PALETTE[colour])[:, None, None]
    if side == "right":
        card = card.flip(-1)
    return (card + 0.05 * noise).clamp(0, 1)


def catalogue(n):
    g = torch.Generator().manual_seed(17)
    colours = list(PALETTE)
    for number in range(n):
        c, m, s, a = (int(torch.randint(0, k, (1,), generator=g)) for k in (4, 4, 2, 2))
        words = [colours[c], MOTIFS[m], ("left", "right")[s], ("old", "new")[a]]
        card = paint(MOTIFS[m], colours[c], ("left", "right")[s], torch.rand(3, 16, 16, generator=g))
        if number == UNSCANNED:
            card = torch.zeros_like(card)
        yield card, torch.tensor([IX[w] for w in words])


def unit(v):
    length = (v * v).sum(dim=-1, keepdim=True).sqrt()
    return v / length.clamp_min(1e-6)


class ImageTower(nn.Sequential):
    def __init__(self, dim):
        super().__init__(
            nn.Conv2d(3, 16, 3, stride=2, padding=1, bias=False), nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1, bias=False), nn.ReLU(),
            nn.Flatten(), nn.Linear(32 * 16, dim, bias=False))


class TextTower(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.words = nn.Embedding(len(WORDS), dim, padding_idx=0)
        self.mix = nn.Linear(dim, dim)

    def forward(self, ids):
        return self.mix(torch.tanh(self.words(ids).mean(1)))


class Matcher(nn.Module):
    def __init__(self, dim=24):
        super().__init__()
        self.image, self.text = ImageTower(dim), TextTower(dim)
        self.log_scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, cards, captions):
        a, b = unit(self.image(cards)), unit(self.text(captions))
        return self.log_scale.clamp(max=4.0).exp() * a @ b.T


def both_ways(scores):
    truth = torch.arange(len(scores))
    return 0.5 * (F.cross_entropy(scores, truth) + F.cross_entropy(scores.T, truth))


cards, captions = map(torch.stack, zip(*catalogue(320)))
matcher = Matcher()
opt = torch.optim.AdamW(matcher.parameters(), lr=3e-3, weight_decay=0.02)
sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda k: min(1.0, (k + 1) / 6))

for step, (x, t) in enumerate(zip(cards.split(8), captions.split(8)), 1):
    scores = matcher(x, t)
    loss = both_ways(scores)
    opt.zero_grad()
    loss.backward()
    opt.step()
    sched.step()
    top1 = (scores.argmax(1) == torch.arange(len(x))).sum().item()
    print(f"{step:3d} loss={loss.item():.6f} top1={top1}/8")

print("total", f"{sum(p.detach().double().sum().item() for p in matcher.parameters()):.6f}")
