"""Character model with RWKV time mixing (v4, written as a plain recurrence), after the minimal RWKV in numpy."""
import argparse
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F

TEXT = """the miller had three sons and when he died he left them nothing but his mill his donkey and his cat
the eldest took the mill the second took the donkey and the youngest had to be content with the cat
what shall i do with a cat he said when i have eaten him and made a muff of his skin i must die of hunger
do not worry master said the cat give me a bag and have a pair of boots made for me and you shall see
"""


def wkv(w, u, k, v):
    """Numerically stable scan: (aa, bb) are the running sums, pp the exponent they are scaled with."""
    B, T, C = k.shape
    aa = torch.zeros(B, C)
    bb = torch.zeros(B, C)
    pp = torch.full((B, C), -float("inf"))
    out = []
    for t in range(T):
        kk, vv = k[:, t], v[:, t]
        ww = u + kk
        q = torch.maximum(pp, ww)
        e1, e2 = torch.exp(pp - q), torch.exp(ww - q)
        out.append((e1 * aa + e2 * vv) / (e1 * bb + e2))
        ww = pp + w
        q = torch.maximum(ww, kk)
        e1, e2 = torch.exp(ww - q), torch.exp(kk - q)
        aa, bb, pp = e1 * aa + e2 * vv, e1 * bb + e2, q
    return torch.stack(out, dim=1)


class TimeMix(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.decay = nn.Parameter(torch.linspace(-5.0, 1.0, c))
        self.first = nn.Parameter(torch.full((c,), 0.3))
        self.mix = nn.Parameter(torch.linspace(0.0, 1.0, c))
        self.key, self.value, self.receptance = (nn.Linear(c, c, bias=False) for _ in range(3))
        self.output = nn.Linear(c, c, bias=False)

    def forward(self, x):
        last = F.pad(x, (0, 0, 1, -1))
        x = x * self.mix + last * (1 - self.mix)
        r = torch.sigmoid(self.receptance(x))
        return self.output(r * wkv(-torch.exp(self.decay), self.first, self.key(x), self.value(x)))


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(c), nn.LayerNorm(c)
        self.att = TimeMix(c)
        self.up, self.down = nn.Linear(c, 3 * c), nn.Linear(3 * c, c)

    def forward(self, x):
        x = x + self.att(self.ln1(x))
        return x + self.down(F.relu(self.up(self.ln2(x))) ** 2)


class RWKV(nn.Module):
    def __init__(self, vocab, c, layers):
        super().__init__()
        self.emb = nn.Embedding(vocab, c)
        self.blocks = nn.ModuleList(Block(c) for _ in range(layers))
        self.norm = nn.LayerNorm(c)
        self.head = nn.Linear(c, vocab, bias=False)

    def forward(self, ids):
        x = self.emb(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=40)
    ap.add_argument("--width", type=int, default=48)
    ap.add_argument("--context", type=int, default=40)
    args = ap.parse_args()
    torch.manual_seed(3)
    chars = sorted(set(TEXT))
    data = torch.tensor([chars.index(c) for c in TEXT])
    model = RWKV(len(chars), args.width, 2)
    average = copy.deepcopy(model)
    opt = torch.optim.AdamW(model.parameters(), lr=4e-3, betas=(0.9, 0.99))
    best = float("inf")
    for step in range(1, args.steps + 1):
        at = torch.randint(len(data) - args.context - 1, (12,))
        rows = torch.stack([data[i:i + args.context + 1] for i in at])
        logits = model(rows[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        with torch.no_grad():
            for a, p in zip(average.parameters(), model.parameters()):
                a.lerp_(p, 0.1)
        best = min(best, loss.item())
        print(f"step {step} loss {loss.item():.5f} best {best:.5f}")
    print("finite", int(all(p.isfinite().all() for p in average.parameters())))


if __name__ == "__main__":
    main()
