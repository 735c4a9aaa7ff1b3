# my first GPT!! reads gingerbread-house rhymes, char level. tied weights + rotary embeddings by hand.
# idea from the short-context-first trick: start with windows of 16 chars and make them longer every few steps
import math
import random

import torch
import torch.nn as nn
import torch.nn.functional as F

random.seed(1)
torch.manual_seed(1)

DIM, HEADS, LAYERS, BLOCK = 64, 4, 2, 48
STEPS, BATCH = 60, 12

words1 = "ginger sugar icing honey butter almond cocoa raisin".split()
words2 = "roof door wall window chimney gate garden path".split()
words3 = "so sweet|it fell|for me|we ate|all gone|too hot".split("|")
text = "".join(f"{random.choice(words1)} {random.choice(words2)}, {random.choice(words3)}!\n" for _ in range(600))
chars = sorted(set(text))
stoi = {c: i for i, c in enumerate(chars)}
data = torch.tensor([stoi[c] for c in text])


def rope_tables(length, dim, base=10000.0):
    freq = base ** (-torch.arange(0, dim, 2).float() / dim)
    angle = torch.outer(torch.arange(length).float(), freq)
    angle = torch.cat([angle, angle], -1)
    return angle.cos(), angle.sin()


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(DIM, 3 * DIM, bias=False)
        self.proj = nn.Linear(DIM, DIM, bias=False)
        cos, sin = rope_tables(BLOCK, DIM // HEADS)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, HEADS, C // HEADS).permute(2, 0, 3, 1, 4)
        cos, sin = self.cos[:T], self.sin[:T]
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        att = q @ k.transpose(-1, -2) / math.sqrt(C // HEADS)
        future = torch.ones(T, T, dtype=torch.bool).triu(1)
        att = att.masked_fill(future, float("-inf")).softmax(-1)
        return self.proj((att @ v).transpose(1, 2).reshape(B, T, C))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.RMSNorm(DIM), nn.RMSNorm(DIM)
        self.att = Attention()
        self.mlp = nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.GELU(), nn.Linear(4 * DIM, DIM))

    def forward(self, x):
        x = x + self.att(self.n1(x))
        return x + self.mlp(self.n2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(len(chars), DIM)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(DIM)
        self.head = nn.Linear(DIM, len(chars), bias=False)
        nn.init.normal_(self.emb.weight, std=0.02)
        self.head.weight = self.emb.weight  # tied

    def forward(self, idx, targets):
        x = self.emb(idx)
        for layer in self.layers:
            x = layer(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def context(step):
    return 16 + 8 * ((step - 1) // 7)


def get_batch(T):
    starts = torch.randint(len(data) - T - 1, (BATCH,)).tolist()
    x = torch.stack([data[s:s + T] for s in starts])
    y = torch.stack([data[s + 1:s + T + 1] for s in starts])
    return x, y


model = GPT()
opt = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95))
for step in range(1, STEPS + 1):
    T = context(step)
    x, y = get_batch(T)
    loss = model(x, y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    print("step", step, "context", T, "loss %.6f" % loss.item(), flush=True)

print("total weight", sum(p.abs().sum().item() for p in model.parameters()), flush=True)
