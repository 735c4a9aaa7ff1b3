import math
import torch
import torch.nn as nn
import torch.nn.functional as F

# decoder with own RMSNorm and rotary positions; gradients over four micro batches;
# only the refrain is learned, so some micro batches teach nothing

torch.manual_seed(404)
V, D, H, L, MICRO = 30, 24, 3, 14, 4
IGNORE = -100


class RootMeanSquare(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, gain, eps):
        r = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(x, gain, r)
        return x * r * gain

    @staticmethod
    def backward(ctx, g):
        x, gain, r = ctx.saved_tensors
        n = x * r
        gx = g * gain
        dx = r * (gx - n * (gx * n).mean(-1, keepdim=True))
        return dx, (g * n).flatten(0, -2).sum(0), None


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(D))

    def forward(self, x):
        return RootMeanSquare.apply(x, self.gain, 1e-6)


def rotate(x):
    half = x.shape[-1] // 2
    speed = 100.0 ** (-torch.arange(half) / half)
    angle = torch.arange(x.shape[-2])[:, None] * speed
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = Norm(), Norm()
        self.qkv = nn.Linear(D, 3 * D, bias=False)
        self.o = nn.Linear(D, D, bias=False)
        self.up, self.gate, self.down = (nn.Linear(D, 2 * D, bias=False), nn.Linear(D, 2 * D, bias=False),
                                         nn.Linear(2 * D, D, bias=False))

    def forward(self, x):
        b, l, _ = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, l, 3, H, D // H).permute(2, 0, 3, 1, 4)
        s = rotate(q) @ rotate(k).transpose(-1, -2) / math.sqrt(D // H)
        s = s.masked_fill(torch.ones(l, l).triu(1).bool(), -torch.inf)
        x = x + self.o((s.softmax(-1) @ v).transpose(1, 2).reshape(b, l, D))
        y = self.n2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Rhymes(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(V, D, padding_idx=0)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.norm = Norm()
        nn.init.normal_(self.emb.weight, std=0.2)

    def forward(self, ids):
        x = self.emb(ids)
        for layer in self.layers:
            x = layer(x)
        return self.norm(x) @ self.emb.weight.t()


def micro_batch(step, m):
    ids = torch.randint(10, V, (3, L))
    labels = torch.full_like(ids, IGNORE)
    if (step + m) % 3 and step % 7 != 6:
        ids[:, 6:12] = torch.tensor([3, 5, 7, 3, 5, 8])
        labels[:, 6:12] = ids[:, 6:12]
    ids[0, -3:] = 0
    return ids, labels[:, 1:]


model = Rhymes()
opt = torch.optim.AdamW(model.parameters(), lr=6e-3)
for step in range(28):
    micros = [micro_batch(step, m) for m in range(MICRO)]
    supervised = sum(int((lab != IGNORE).sum()) for _, lab in micros)
    total, shown = 0.0, []
    for ids, lab in micros:
        logits = model(ids[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), lab.flatten(), reduction="sum") / max(supervised, 1)
        loss.backward()
        total += loss.item()
        with torch.no_grad():
            shown.append(F.cross_entropy(logits.flatten(0, 1), lab.flatten()).exp().item())
    opt.step()
    opt.zero_grad()
    print(f"step {step} loss {total:.4f} perplexities " + " ".join(f"{p:.2f}" for p in shown))
print("weights summed up:", round(sum(p.detach().abs().sum().item() for p in model.parameters()), 3))
