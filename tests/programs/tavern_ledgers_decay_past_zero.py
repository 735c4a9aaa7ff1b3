"""Character model of tavern ledgers, trained for three passes.

Linear decay as in the old script. The number of updates is taken from one pass over the ledger.
"""

import math

import torch
from torch import nn
from torch.nn import functional as F

CONFIG = {"block": 24, "batch": 8, "width": 48, "heads": 4, "layers": 2, "passes": 3, "base_lr": 4e-3, "warmup": 4}
GOODS = ["ale", "mead", "bread", "cheese", "hay", "candles", "mutton"]
NAMES = ["wm smith", "the miller", "goody hart", "jn carter", "ye parson"]


def ledger(lines=620):
    g = torch.Generator().manual_seed(99)
    rows = []
    for _i in range(lines):
        n, q, k = (int(torch.randint(m, (1,), generator=g)) for m in (len(NAMES), 9, len(GOODS)))
        rows.append(f"{NAMES[n]} {q + 1} {GOODS[k]}; ")
    return "".join(rows)[:4900]


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.heads = heads

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.ln2(x))


class LedgerLM(nn.Module):
    def __init__(self, vocab, cfg):
        super().__init__()
        self.tok = nn.Embedding(vocab, cfg["width"])
        self.pos = nn.Parameter(0.02 * torch.randn(cfg["block"], cfg["width"]))
        self.layers = nn.ModuleList(Layer(cfg["width"], cfg["heads"]) for _ in range(cfg["layers"]))
        self.norm = nn.LayerNorm(cfg["width"])
        self.out = nn.Linear(cfg["width"], vocab)

    def forward(self, ids):
        x = self.tok(ids) + self.pos
        for layer in self.layers:
            x = layer(x)
        return self.out(self.norm(x))


def passes(data, cfg):
    rows = data[: len(data) // (cfg["block"] + 1) * (cfg["block"] + 1)].view(-1, cfg["block"] + 1)
    for _ in range(cfg["passes"]):
        order = torch.randperm(len(rows))
        for i in range(0, len(rows) - cfg["batch"] + 1, cfg["batch"]):
            yield rows[order[i : i + cfg["batch"]]]


def main():
    torch.manual_seed(1723)
    text = ledger()
    alphabet = sorted(set(text))
    data = torch.tensor([alphabet.index(c) for c in text])
    cfg = CONFIG
    updates = len(data) // (cfg["block"] + 1) // cfg["batch"]
    model = LedgerLM(len(alphabet), cfg)
    opt = torch.optim.AdamW(model.parameters(), lr=cfg["base_lr"], weight_decay=0.01)

    def decay(i):
        if i < cfg["warmup"]:
            return (i + 1) / cfg["warmup"]
        return 1 - (i - cfg["warmup"]) / (updates - cfg["warmup"])

    sched = torch.optim.lr_scheduler.LambdaLR(opt, decay)
    for step, rows in enumerate(passes(data, cfg), 1):
        logits = model(rows[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        print(f"update {step:3d} loss {loss.item():.6f} bits {loss.item() / math.log(2):.4f}")
    print("weights", sum(p.double().sum().item() for p in model.parameters()))


if __name__ == "__main__":
    main()
