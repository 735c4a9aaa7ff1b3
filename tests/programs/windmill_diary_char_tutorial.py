"""Part 3 of my "language models without magic" tutorial: a character model of a windmill keeper's diary.

We build everything from nn.Module and nothing else.  New in this part: the context GROWS during training (8, 16, 24, ...
characters).  I report the loss as the SUM over the window, in nats, because then the numbers can be compared with the
size of a compressed file.  So do not be surprised: each time the window grows, the number jumps up.
"""
import math
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(1789)

# ---------------------------------------------------------------- 1. the text
WEATHER = ["north wind, sails reefed", "dead calm all day", "gusts from the west", "light airs, fog at dawn"]
WORK = ["ground nine sacks of rye", "dressed the runner stone", "greased the cap rollers", "mended the fantail",
        "no grist came in"]
g = torch.Generator().manual_seed(5)


def diary(days):
    lines = []
    for d in range(days):
        w = WEATHER[torch.randint(len(WEATHER), (1,), generator=g).item()]
        k = WORK[torch.randint(len(WORK), (1,), generator=g).item()]
        lines.append(f"day {d}: {w}. {k}.\n")
    return "".join(lines)


text = diary(160)
chars = sorted(set(text))
stoi = {c: i for i, c in enumerate(chars)}
data = torch.tensor([stoi[c] for c in text])
MAX_CONTEXT = 56


# ---------------------------------------------------------------- 2. the model
class Head(nn.Module):
    def __init__(self, width, size):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * size, bias=False)
        # -inf above the diagonal: the future has probability zero
        self.register_buffer("future", torch.full((MAX_CONTEXT, MAX_CONTEXT), float("-inf")).triu(1))

    def forward(self, x):
        T = x.shape[1]
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        att = q @ k.transpose(1, 2) / math.sqrt(q.shape[-1]) + self.future[:T, :T]
        return att.softmax(-1) @ v


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = nn.ModuleList(Head(width, width // heads) for _ in range(heads))
        self.mlp = nn.Sequential(nn.Linear(width, 3 * width), nn.GELU(), nn.Linear(3 * width, width))
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x):
        y = self.n1(x)
        x = x + torch.cat([h(y) for h in self.heads], dim=-1)
        return x + self.mlp(self.n2(x))


class CharModel(nn.Module):
    def __init__(self, vocab, width=48):
        super().__init__()
        self.tok = nn.Embedding(vocab, width)
        self.pos = nn.Embedding(MAX_CONTEXT, width)
        self.blocks = nn.Sequential(Block(width, 4), Block(width, 4))
        self.out = nn.Linear(width, vocab)

    def forward(self, idx):
        x = self.tok(idx) + self.pos(torch.arange(idx.shape[1]))
        return self.out(self.blocks(x))


def get_batch(T, B=12):
    at = torch.randint(len(data) - T - 1, (B,), generator=g)
    x = torch.stack([data[i:i + T] for i in at])
    y = torch.stack([data[i + 1:i + T + 1] for i in at])
    return x, y


# ---------------------------------------------------------------- 3. training
model = CharModel(len(chars))
average = {k: v.clone() for k, v in model.state_dict().items()}
opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
for step in range(1, 50):
    T = 8 * (1 + (step - 1) // 7)          # the curriculum: 8, 16, ... 56
    x, y = get_batch(T)
    logits = model(x)
    nll = F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none").view(y.shape)
    loss = nll.sum(1).mean()
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 20.0)
    opt.step()
    with torch.no_grad():
        for k, v in model.state_dict().items():
            average[k].lerp_(v, 0.1) if "future" not in k else None
    # "how many equally likely diaries": exp of the sum; overflows float32 as soon as the window is long, that is fine
    diaries = torch.exp(nll.detach().sum(1).mean() * 2).item()
    print(f"step {step} context {T} nats {loss.item():.5f} per char {loss.item() / T:.5f} diaries {diaries:.3e}", flush=True)

# ---------------------------------------------------------------- 4. a sample from the averaged model
model.load_state_dict(average)
idx = torch.tensor([[stoi["d"]]])
for _ in range(40):
    p = model(idx[:, -MAX_CONTEXT:])[0, -1]
    best = p.topk(5).values[-1]
    p = p.masked_fill(p < best, float("-inf")).softmax(-1)
    idx = torch.cat([idx, torch.multinomial(p, 1, generator=g)[None]], dim=1)
print(repr("".join(chars[i] for i in idx[0].tolist())))
print(f"{sum(p.abs().sum().item() for p in model.parameters()):.5f}")
