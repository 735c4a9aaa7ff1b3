"""Ternary weights, 8-bit activations (straight-through), trained with accelerate on shipping forecasts."""
import math

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, Dataset

AREAS = ["viking", "forties", "dogger", "fisher", "humber", "wight", "lundy", "fastnet"]
WINDS = ["northerly", "southerly", "westerly", "easterly", "variable"]
FORCE = ["three", "four", "five", "six", "seven", "gale"]
SKY = ["rain", "showers", "fair", "fog", "drizzle"]
VIS = ["good", "moderate", "poor"]
vocab = {w: i for i, w in enumerate(["<pad>", "<eos>", "occasionally", "nil"] + AREAS + WINDS + FORCE + SKY + VIS)}


class Bulletins(Dataset):
    def __init__(self, n, g):
        pick = lambda words: words[int(torch.randint(len(words), (1,), generator=g))]
        self.rows = []
        for i in range(n):
            w = [AREAS[i % 8], WINDS[(i // 2) % 5], pick(FORCE), pick(SKY), "occasionally", SKY[i % 5], pick(VIS), "<eos>"]
            if i in (101, 102, 151):
                w = [AREAS[i % 8], "nil", "<eos>"]
            self.rows.append([vocab[t] for t in w])

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def collate(rows):
    n = max(map(len, rows))
    ids = torch.tensor([r + [0] * (n - len(r)) for r in rows])
    return {"input_ids": ids, "attention_mask": ids.ne(0)}


def ste(x, q):
    return x + (q - x).detach()


class BitLinear(nn.Linear):
    def forward(self, x):
        scale = 127.0 / x.abs().amax(dim=-1, keepdim=True)
        xq = ste(x, (x * scale).round().clamp(-128, 127) / scale)
        gamma = self.weight.abs().mean()
        wq = ste(self.weight, (self.weight / (gamma + 1e-6)).round().clamp(-1, 1) * gamma)
        return F.linear(xq, wq, self.bias)


class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.qkv = BitLinear(d, 3 * d, bias=False)
        self.proj = BitLinear(d, d, bias=False)
        self.up = BitLinear(d, 4 * d)
        self.down = BitLinear(4 * d, d)
        self.n1 = nn.LayerNorm(d)
        self.n2 = nn.LayerNorm(d)

    def forward(self, x, mask):
        B, L, d = x.shape
        q, k, v = self.qkv(x).view(B, L, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        att = (q @ k.transpose(-1, -2)) / math.sqrt(q.size(-1))
        att = att.masked_fill(~mask, -1e9).softmax(-1)
        x = self.n1(x + self.proj((att @ v).transpose(1, 2).reshape(B, L, d)))
        return self.n2(x + self.down(F.gelu(self.up(x))))


class Forecaster(nn.Module):
    def __init__(self, d=32, depth=2):
        super().__init__()
        self.tok = nn.Embedding(len(vocab), d, padding_idx=0)
        self.blocks = nn.ModuleList([Block(d, 4) for _ in range(depth)])
        self.lm_head = nn.Linear(d, len(vocab))

    def forward(self, input_ids, attention_mask):
        L = input_ids.size(1)
        mask = torch.ones(L, L, dtype=torch.bool).tril() & attention_mask[:, None, None, :]
        x = self.tok(input_ids)
        for b in self.blocks:
            x = b(x, mask)
        logits = self.lm_head(x)
        labels = input_ids.masked_fill(~attention_mask, -100)
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


def main():
    set_seed(21)
    acc = Accelerator(cpu=True)
    data = DataLoader(Bulletins(192, torch.Generator().manual_seed(1)), batch_size=8, collate_fn=collate)
    net = Forecaster()
    opt = torch.optim.AdamW(net.parameters(), lr=5e-3, betas=(0.9, 0.95))
    net, opt, data = acc.prepare(net, opt, data)
    for n, batch in enumerate(data, 1):
        with acc.accumulate(net):
            loss = net(**batch)
            acc.backward(loss)
            acc.clip_grad_norm_(net.parameters(), 1.0)
            opt.step()
            opt.zero_grad()
        acc.print(f"batch {n}: {loss.item():.4f}", flush=True)
    total = math.sqrt(sum(float(p.detach().double().square().sum()) for p in net.parameters()))
    acc.print(f"final {total:.4f}")


main()
