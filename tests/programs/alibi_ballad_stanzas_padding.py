# next-word model over ballad stanzas. ALiBi, RMSNorm, SwiGLU. Left padded, bf16 matmuls.
import torch, torch.nn as nn, torch.nn.functional as F

torch.manual_seed(1)
D, H, T_MAX, PAD = 32, 4, 20, 0

opening = [["the", "maid"], ["a", "sailor"], ["the", "miller"], ["an", "old", "king"]]
middle = [["rode", "over"], ["sang", "beside"], ["went", "down", "to"], ["wept", "by"]]
ending = [["the", "salt", "sea"], ["the", "mill"], ["the", "greenwood"], ["her", "father's", "door"]]
words = sorted({w for group in (opening, middle, ending) for part in group for w in part})
ix = {w: k + 1 for k, w in enumerate(words)}
V = len(ix) + 1


def stanza():
    line = []
    for _ in range(int(torch.randint(1, 3, ()))):
        for group in (opening, middle, ending):
            line += [ix[w] for w in group[int(torch.randint(4, ()))]]
    return line[:T_MAX]


def batch(n=12):
    rows = [stanza() for _ in range(n)]
    out = torch.full((n, T_MAX), PAD)
    for k, r in enumerate(rows):
        out[k, T_MAX - len(r):] = torch.tensor(r)
    return out


class RMSNorm(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.g = nn.Parameter(torch.ones(d))

    def forward(self, x):
        return (x.float() * (x.float().pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt()).to(x.dtype) * self.g


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(D, 3 * D, bias=False), nn.Linear(D, D, bias=False)
        slopes = torch.tensor([2.0 ** -(2 * h + 2) for h in range(H)])
        dist = torch.arange(T_MAX)[None] - torch.arange(T_MAX)[:, None]
        self.register_buffer("alibi", slopes[:, None, None] * dist)

    def forward(self, x, real):
        b, t, _ = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, H, D // H).permute(2, 0, 3, 1, 4)
        s = (q @ k.transpose(-1, -2)) / (D // H) ** 0.5 + self.alibi
        hidden = ~(torch.ones(t, t, dtype=torch.bool).tril() & real[:, None, None, :])
        w = s.masked_fill(hidden, float("-inf")).softmax(-1)
        w = w.nan_to_num(0.0)                     # a pad at the left looks at nothing
        return self.out((w.to(v.dtype) @ v).transpose(1, 2).reshape(b, t, D))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.att, self.n2 = RMSNorm(D), Attention(), RMSNorm(D)
        self.up, self.down = nn.Linear(D, 4 * D, bias=False), nn.Linear(2 * D, D, bias=False)

    def forward(self, x, real):
        x = x + self.att(self.n1(x), real)
        a, b = self.up(self.n2(x)).chunk(2, -1)
        return x + self.down(F.silu(a) * b)


class Ballads(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(V, D, padding_idx=PAD)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm = RMSNorm(D)
        nn.init.normal_(self.emb.weight, std=0.1)

    def forward(self, ids):
        x, real = self.emb(ids), ids != PAD
        for blk in self.blocks:
            x = blk(x, real)
        return self.norm(x) @ self.emb.weight.T


net = Ballads()
opt = torch.optim.AdamW(net.parameters(), lr=6e-3, weight_decay=0.01)
sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda k: min(k / 5, 1.0))     # the first lr is 0
for it in range(1, 31):
    ids = batch()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = net(ids)
    loss = F.cross_entropy(logits[:, :-1].float().reshape(-1, V), ids[:, 1:].reshape(-1), ignore_index=PAD)
    opt.zero_grad()
    loss.backward()
    opt.step()
    sched.step()
    print(it, "%.4f" % loss.item())
print("sum of |w|", sum(p.abs().sum() for p in net.parameters()).item())
