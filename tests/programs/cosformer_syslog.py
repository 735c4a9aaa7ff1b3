"""Next-event model of syslog templates with linear (cosFormer) attention."""
import math

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(13)
PAD, VOCAB = 0, 50


class CosAttention(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(d, 3 * d, bias=False)
        self.out = nn.Linear(d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k = F.relu(q), F.relu(k)
        angle = math.pi / 2 * torch.arange(1, t + 1) / t
        sin, cos = angle.sin()[:, None], angle.cos()[:, None]
        q = torch.cat([q * sin, q * cos], -1)
        k = torch.cat([k * sin, k * cos], -1)
        kv = torch.einsum("bhtd,bhte->bhtde", k, v).cumsum(2)
        top = torch.einsum("bhtd,bhtde->bhte", q, kv)
        bottom = torch.einsum("bhtd,bhtd->bht", q, k.cumsum(2))
        y = top / bottom.unsqueeze(-1)
        return self.out(y.transpose(1, 2).reshape(b, t, d))


class Layer(nn.Module):
    def __init__(self, d=128, heads=2):
        super().__init__()
        self.ln1, self.ln2 = nn.RMSNorm(d), nn.RMSNorm(d)
        self.attn = CosAttention(d, heads)
        self.ff = nn.Sequential(nn.Linear(d, 128), nn.GELU(), nn.Linear(128, d))

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.ff(self.ln2(x))


class LogModel(nn.Module):
    def __init__(self, d=128):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, d, padding_idx=PAD)
        self.trunk = nn.Sequential(Layer(d), Layer(d))
        self.head = nn.Linear(d, VOCAB)

    def forward(self, ids):
        return self.head(self.trunk(self.embed(ids)))


def collate(windows):
    longest = max(len(w) for w in windows)
    return torch.stack([F.pad(w, (longest - len(w), 0), value=PAD) for w in windows])


stream = [torch.randint(1, VOCAB, (20,)) for _ in range(240)]
for w in stream:
    w[10:] = w[:10]
stream[131] = stream[131][:14]        # the host rebooted here
model = LogModel()
body = [p for n, p in model.named_parameters() if not n.startswith('embed')]
opt = torch.optim.RAdam(body, lr=1e-3)
opt_embed = torch.optim.SGD(model.embed.parameters(), lr=0.05)
for step in range(24):
    ids = collate(stream[8 * step:8 * step + 8])
    logits = model(ids[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), ignore_index=PAD)
    opt.zero_grad(set_to_none=True)
    opt_embed.zero_grad()
    loss.backward()
    nn.utils.clip_grad_value_(model.parameters(), 1.0)
    opt.step()
    opt_embed.step()
    print(step, "ce %.4f" % loss.item())
print("w2 %.6f" % sum(p.detach().square().sum().item() for p in model.parameters()))
