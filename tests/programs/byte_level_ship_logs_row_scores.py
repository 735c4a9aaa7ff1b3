#!/usr/bin/env python
# Next byte of old ship's logs. The optimiser is my own: every row of a matrix is brought to one scale.
import torch
import torch.nn.functional as F

torch.manual_seed(64)


def ship_log(lines, rng):
    wind = ["N", "NNE", "SW by W", "variable", "calm", "ESE"]
    work = ["reefed topsails", "set all plain sail", "pumped ship", "saw a strange sail", "people employed in rigging"]
    out = []
    for day in range(lines):
        a, b, c = (int(torch.randint(k, (1,), generator=rng)) for k in (len(wind), len(work), 60))
        out.append(f"Day {day + 1}. Wind {wind[a]}. {work[b]}. Lat 4{c % 10} {c:02d} S.\n")
    return torch.tensor(list("".join(out).encode()))


class ByteModel(torch.nn.Module):
    def __init__(self, d=32, heads=4):
        super().__init__()
        self.heads = heads
        self.table = torch.nn.Embedding(256, d)
        self.qkv = torch.nn.Linear(d, 3 * d)
        self.back = torch.nn.Linear(d, d)
        self.slopes = torch.nn.Parameter(torch.tensor([[0.5], [0.25], [0.12], [0.06]]), requires_grad=False)
        self.up, self.down = torch.nn.Linear(d, 64), torch.nn.Linear(64, d)
        self.head = torch.nn.Linear(d, 256)

    def forward(self, ids):
        b, n = ids.shape
        x = self.table(ids)
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        ago = torch.arange(n)[:, None] - torch.arange(n)
        bias = -self.slopes[:, :, None] * ago.clamp(min=0)
        bias = bias.masked_fill(ago < 0, float("-inf"))
        a = (q @ k.mT / q.shape[-1] ** 0.5 + bias).softmax(-1)
        x = x + self.back((a @ v).transpose(1, 2).reshape(b, n, -1))
        x = x + self.down(F.gelu(self.up(F.layer_norm(x, x.shape[-1:]))))
        return self.head(F.layer_norm(x, x.shape[-1:]))


class RowScores:
    """Momentum on gradients that are standardised within each row; vectors are only clipped."""

    def __init__(self, params, rate, keep=0.9):
        self.params, self.rate, self.keep = list(params), rate, keep
        self.memory = [torch.zeros_like(p) for p in self.params]

    def clear(self):
        for p in self.params:
            p.grad = None

    @torch.no_grad()
    def update(self):
        for p, m in zip(self.params, self.memory):
            if p.grad is None:
                continue
            g = p.grad
            if g.dim() > 1:
                away = g - g.mean(dim=1, keepdim=True)
                g = away / (g.std(dim=1, keepdim=True) + 1e-8)
            else:
                g = g.clamp(-1, 1)
            m.mul_(self.keep).add_(g, alpha=1 - self.keep)
            p.sub_(self.rate * m)


rng = torch.Generator().manual_seed(7)
log = ship_log(60, rng)
model = ByteModel()
tuner = RowScores(model.parameters(), rate=0.01)
for step in range(1, 33):
    if step == 15:
        model.slopes.requires_grad_(True)      # by now the heads know what they look for
    at = torch.randint(len(log) - 41, (8, 1), generator=rng) + torch.arange(41)
    window = log[at]
    loss = F.cross_entropy(model(window[:, :-1]).flatten(0, 1), window[:, 1:].flatten())
    tuner.clear()
    loss.backward()
    tuner.update()
    print(step, "bits per byte", f"{loss.item() / 0.6931:.4f}")
print("all weights squared:", f"{sum(p.detach().square().sum().item() for p in model.parameters()):.3f}")
