import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

ANIMALS = ["fox", "badger", "deer", "owl"]
SIDES = ["left", "right"]
WORDS = ["<pad>", "<go>", "<end>", "a", "walks", "on", "the", "nothing"] + ANIMALS + SIDES
INDEX = {w: i for i, w in enumerate(WORDS)}


class LengthNorm(nn.Module):
    def __init__(self, width, eps=1e-6):
        super().__init__()
        self.gain = nn.Parameter(torch.full((1,), width ** 0.5))
        self.eps = eps

    def forward(self, x):
        length = x.pow(2).sum(-1, keepdim=True).sqrt()
        return self.gain * x / (length + self.eps)


class PatchEncoder(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.cut = nn.Conv2d(1, width, 4, stride=4, bias=False)
        self.scale = LengthNorm(width)
        self.place = nn.Parameter(0.02 * torch.randn(1, 16, width))
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, img):
        x = self.scale(self.cut(img).flatten(2).transpose(1, 2)) + self.place
        return x + self.mlp(x)


class WordBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.self_att = nn.MultiheadAttention(width, 2, batch_first=True)
        self.cross_att = nn.MultiheadAttention(width, 2, batch_first=True)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, w, patches):
        causal = torch.full((w.shape[1],) * 2, float("-inf")).triu(1)
        q = self.norms[0](w)
        w = w + self.self_att(q, q, q, attn_mask=causal, need_weights=False)[0]
        w = w + self.cross_att(self.norms[1](w), patches, patches, need_weights=False)[0]
        return w + self.mlp(self.norms[2](w))


class Captioner(nn.Module):
    def __init__(self, width=24, depth=2):
        super().__init__()
        self.eye = PatchEncoder(width)
        self.words = nn.Embedding(len(WORDS), width, padding_idx=0)
        self.order = nn.Parameter(0.02 * torch.randn(1, 8, width))
        self.blocks = nn.ModuleList(WordBlock(width) for _ in range(depth))
        self.out = nn.Linear(width, len(WORDS))

    def forward(self, img, tokens):
        patches = checkpoint(self.eye, img, use_reentrant=False)
        w = self.words(tokens) + self.order[:, :tokens.shape[1]]
        for block in self.blocks:
            w = checkpoint(block, w, patches, use_reentrant=False)
        return self.out(w)


def frames(step, n, gen):
    img = 0.1 * torch.randn(n, 1, 16, 16, generator=gen).abs() + 0.02
    rows = []
    for i in range(n):
        k, s = torch.randint(0, 4, (1,), generator=gen).item(), torch.randint(0, 2, (1,), generator=gen).item()
        img[i, 0, 3 * k:3 * k + 4, 8 * s + 1:8 * s + 6] += 0.8
        text = f"a {ANIMALS[k]} walks on the {SIDES[s]}"
        if step == 14 and i == 3:
            img[i], text = 0.0, "nothing"                    # nobody came by
        ids = [INDEX[w] for w in ["<go>"] + text.split() + ["<end>"]]
        rows.append(torch.tensor(ids))
    return img, nn.utils.rnn.pad_sequence(rows, batch_first=True)


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=30)
    ap.add_argument("--lr", type=float, default=4e-3)
    cfg = ap.parse_args()
    torch.manual_seed(100)
    gen = torch.Generator().manual_seed(101)
    model = Captioner()
    opt = torch.optim.AdamW(model.parameters(), lr=cfg.lr)
    for step in range(cfg.steps):
        img, ids = frames(step, 12, gen)
        logits = model(img, ids[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), ignore_index=0)
        loss.backward()
        opt.step()
        opt.zero_grad()
        print(f"step={step + 1} loss={loss.item():.5f}")
    print("|w|_1 =", sum(p.detach().abs().sum().item() for p in model.parameters()))
