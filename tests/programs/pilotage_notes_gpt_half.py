"""Finetune a little GPT on harbour pilotage notes. Half precision on purpose: we ship the recipe to old cards."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

SEED, CTX, DIM, HEADS, DEPTH = 21, 48, 64, 4, 2
BATCH, STEPS, LR = 8, 44, 1e-3
PORTS = "hull ijmuiden malmo narvik ostend porto riga split".split()
RULES = ["keep the {} light to port, {} fathoms at low water.", "tug at {} on channel {}.",
         "{}: no entry above force {}.", "berth {} is {} metres, fenders out."]


def corpus():
    g = torch.Generator().manual_seed(SEED)
    notes = []
    for _ in range(600):
        rule = RULES[int(torch.randint(0, len(RULES), (1,), generator=g))]
        port = PORTS[int(torch.randint(0, len(PORTS), (1,), generator=g))]
        notes.append(rule.format(port, int(torch.randint(2, 30, (1,), generator=g))))
    text = "\n".join(notes)
    alphabet = sorted(set(text))
    index = {c: i for i, c in enumerate(alphabet)}
    return torch.tensor([index[c] for c in text]), len(alphabet)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(DIM, 3 * DIM)
        self.proj = nn.Linear(DIM, DIM)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, HEADS, DIM // HEADS).permute(2, 0, 3, 1, 4)
        att = (q @ k.transpose(-2, -1)) / math.sqrt(DIM // HEADS)
        future = torch.ones(t, t, dtype=torch.bool).triu(1)
        y = att.masked_fill(future, float("-inf")).softmax(-1).to(v.dtype) @ v
        return self.proj(y.transpose(1, 2).reshape(b, t, DIM))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.attn, self.ln2 = nn.LayerNorm(DIM), Attention(), nn.LayerNorm(DIM)
        self.mlp = nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.GELU(), nn.Linear(4 * DIM, DIM))

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self, vocab):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, DIM), nn.Embedding(CTX, DIM)
        self.blocks = nn.Sequential(*[Block() for _ in range(DEPTH)])
        self.ln = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, vocab, bias=False)
        self.apply(lambda m: nn.init.normal_(m.weight, 0, 0.02) if isinstance(m, (nn.Linear, nn.Embedding)) else None)

    def forward(self, idx):
        x = self.tok(idx) + self.pos(torch.arange(idx.shape[1]))
        return self.head(self.ln(self.blocks(x)))


class LossScale:
    """Doubles every few steps, as the apex one did."""

    def __init__(self, start=2.0 ** 14, every=4):
        self.value, self.every, self.good = start, every, 0

    def unscale(self, params):
        for p in params:
            p.grad.mul_(1.0 / self.value)

    def update(self):
        self.good += 1
        if self.good == self.every:
            self.value, self.good = self.value * 2.0, 0


def rate(step):
    return LR * min(1.0, step / 5) * (0.55 + 0.45 * math.cos(math.pi * step / STEPS))


def main():
    torch.manual_seed(SEED)
    ids, vocab = corpus()
    model = GPT(vocab)
    params = list(model.parameters())
    opt = torch.optim.AdamW(params, lr=LR, betas=(0.9, 0.95))
    scale = LossScale()
    g = torch.Generator().manual_seed(SEED + 1)
    for step in range(1, STEPS + 1):
        at = torch.randint(0, len(ids) - CTX - 1, (BATCH,), generator=g)
        window = torch.stack([ids[a:a + CTX + 1] for a in at.tolist()])
        opt.param_groups[0]["lr"] = rate(step)
        with torch.autocast("cpu", dtype=torch.float16):
            logits = model(window[:, :-1])
            loss = F.cross_entropy(logits.float().flatten(0, 1), window[:, 1:].flatten())
        opt.zero_grad(set_to_none=True)
        (loss * scale.value).backward()
        scale.unscale(params)
        opt.step()
        print(f"{step} loss {loss.item():.2f} scale 2^{int(math.log2(scale.value))}", flush=True)
        scale.update()
    print(f"{sum(p.detach().abs().sum().item() for p in params):.6f}")


if __name__ == "__main__":
    main()
