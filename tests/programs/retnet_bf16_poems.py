"""Retention network on a rhyme scheme, all in bfloat16, with gradient accumulation."""
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(17)


class Retention(nn.Module):
    """Parallel form; every row of the decay matrix is divided by its sum."""

    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = (nn.Linear(d, d, bias=False) for _ in range(3))
        self.o = nn.Linear(d, d, bias=False)
        self.register_buffer("gamma", 1 - 2.0 ** (-5 - torch.arange(heads).float()))

    def decay(self, t):
        i = torch.arange(t)
        gap = (i[:, None] - i[None, :]).clamp(min=0)
        g = self.gamma[:, None, None]
        matrix = (g ** gap).tril()
        row_sum = (1 - g ** (i[:, None] + 1)) / (1 - g)
        return matrix / row_sum

    def forward(self, x):
        b, t, d = x.shape
        split = lambda z: z.view(b, t, self.heads, -1).transpose(1, 2)
        q, k, v = split(self.q(x)), split(self.k(x)), split(self.v(x))
        scores = (q @ k.transpose(-1, -2)) * self.decay(t)
        return self.o((scores @ v).transpose(1, 2).reshape(b, t, d))


class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.norm, self.retention = nn.LayerNorm(d), Retention(d, heads)
        self.norm2 = nn.LayerNorm(d)
        self.ffn = nn.Sequential(nn.Linear(d, 2 * d), nn.SiLU(), nn.Linear(2 * d, d))

    def forward(self, x):
        x = x + self.retention(self.norm(x))
        return x + self.ffn(self.norm2(x))


class PoemNet(nn.Module):
    def __init__(self, vocab, d=48):
        super().__init__()
        self.embed = nn.Embedding(vocab, d)
        self.short = Block(d, 4)          # local structure
        self.long = Block(d, 8)           # rhyme
        self.head = nn.Linear(d, vocab)

    def forward(self, ids):
        return self.head(self.long(self.short(self.embed(ids))))


poems = torch.randint(0, 30, (160, 24))
poems[:, 12:] = poems[:, :12]
net = PoemNet(30).to(torch.bfloat16)
opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
sched = torch.optim.lr_scheduler.LinearLR(opt, 0.1, 1.0, 5)
accumulate = 2
for step in range(20):
    running = 0.0
    for micro in range(accumulate):
        at = (step * accumulate + micro) * 4
        ids = poems[at:at + 4]
        loss = F.cross_entropy(net(ids[:, :-1]).float().flatten(0, 1), ids[:, 1:].flatten())
        (loss / accumulate).backward()
        running += loss.item() / accumulate
    opt.step()
    sched.step()
    opt.zero_grad()
    print(f"update {step + 1}: loss {running:.4f}")
print("w", sum(p.detach().float().pow(2).sum().item() for p in net.parameters()))
