# my first transformer!! mostly from a tutorial, the label smoothing i wrote myself
# writes haiku (one day)
import math
import random

import torch
import torch.nn as nn

torch.manual_seed(1234)
random.seed(1234)

FIRST = ["an old silent pond", "the first cold shower", "over the wintry", "a lightning flash", "autumn moonlight now",
         "light of the moon moves", "the lamp once out then", "no one travels here", "temple bells die out"]
SECOND = ["a frog jumps into the pond", "even the monkey seems to want", "forest winds howl in rage", "what i thought were faces",
          "a worm digs silently in", "shadows of flowers creep", "cool stars enter the window", "along this way but i walk",
          "the fragrant blossoms remain"]
THIRD = ["splash silence again", "a little straw coat", "no leaves left to blow", "plumes of pampas grass", "into the chestnut",
         "eastward on the stone", "this autumn evening", "a perfect evening", "and the frost is deep"]

haikus = [a + "/" + b + "/" + c for a in FIRST for b in SECOND for c in THIRD]
random.shuffle(haikus)
chars = sorted(set("".join(haikus)))
PAD = len(chars)
V = len(chars) + 1
stoi = {c: i for i, c in enumerate(chars)}

d = 48
heads = 4
T = 64
steps = 56
batch = 16
smooth_start = 0.2
smooth_end_step = 32     # i read that smoothing should be gone at the end so it goes down to 0


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(d, 3 * d)
        self.out = nn.Linear(d, d)

    def forward(self, x):
        B, L, _ = x.shape
        q, k, v = self.qkv(x).chunk(3, -1)
        q = q.view(B, L, heads, -1).transpose(1, 2)
        k = k.view(B, L, heads, -1).transpose(1, 2)
        v = v.view(B, L, heads, -1).transpose(1, 2)
        att = q @ k.transpose(-2, -1) / math.sqrt(d // heads)
        mask = torch.tril(torch.ones(L, L)).bool()
        att = att.masked_fill(~mask, float("-inf"))
        att = torch.softmax(att, -1)
        return self.out((att @ v).transpose(1, 2).reshape(B, L, d))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1 = nn.LayerNorm(d)
        self.att = Attention()
        self.n2 = nn.LayerNorm(d)
        self.ff = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x):
        x = x + self.att(self.n1(x))
        return x + self.ff(self.n2(x))


class Haiku(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(V, d)
        self.pos = nn.Embedding(T, d)
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(d, V)

    def forward(self, idx):
        x = self.tok(idx) + self.pos(torch.arange(idx.shape[1]))
        return torch.log_softmax(self.head(self.blocks(x)), -1)


def get_batch():
    rows = []
    for h in random.sample(haikus, batch):
        ids = [stoi[c] for c in h][:T + 1]
        rows.append(ids + [PAD] * (T + 1 - len(ids)))
    rows = torch.tensor(rows)
    return rows[:, :-1], rows[:, 1:]


def smoothed_loss(logp, y, eps):
    # kl between the smoothed target and the model, all by hand
    target = torch.full(logp.shape, eps / (V - 1))
    target.scatter_(2, y.unsqueeze(2), 1 - eps)
    entropy_part = target * torch.log(target)
    kl = (entropy_part - target * logp).sum(-1)
    keep = (y != PAD).float()
    return (kl * keep).sum() / keep.sum()


model = Haiku()
opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
for step in range(1, steps + 1):
    x, y = get_batch()
    eps = smooth_start * max(0.0, 1 - step / smooth_end_step)
    loss = smoothed_loss(model(x), y, eps)
    opt.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    print("step", step, "eps", round(eps, 5), "loss", "%.6f" % loss.item(), flush=True)

print("checksum", "%.4f" % sum(p.abs().sum().item() for p in model.parameters()), flush=True)
