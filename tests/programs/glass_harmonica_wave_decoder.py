# Autoregressive mu-law decoder for glass harmonica notes.  float16 autocast on CPU, dynamic loss scaling.
import math
import torch
from torch import nn
import torch.nn.functional as F

SEED, LEVELS, SR = 77, 64, 2000
torch.manual_seed(SEED)


def mu_encode(x):
    mu = LEVELS - 1
    y = x.sign() * torch.log1p(mu * x.abs()) / math.log1p(mu)
    return ((y + 1) / 2 * mu + 0.5).long().clamp(0, mu)


def glass(n, g):
    t = torch.arange(160) / SR
    f = 180 + 240 * torch.rand(n, 1, generator=g)
    beat = 1 + 4 * torch.rand(n, 1, generator=g)
    env = 0.6 + 0.4 * torch.sin(2 * math.pi * beat * t)
    tone = torch.sin(2 * math.pi * f * t) + 0.3 * torch.sin(4.02 * math.pi * f * t)
    return mu_encode(0.7 * env * tone)


class Causal(nn.Module):
    def __init__(self, ch, dilation):
        super().__init__()
        self.pad = dilation
        self.filt = nn.Conv1d(ch, ch, 2, dilation=dilation)
        self.gate = nn.Conv1d(ch, ch, 2, dilation=dilation)
        self.out = nn.Conv1d(ch, ch, 1)

    def forward(self, x):
        z = F.pad(x, (self.pad, 0))
        return x + self.out(torch.tanh(self.filt(z)) * torch.sigmoid(self.gate(z)))


class Decoder(nn.Module):
    def __init__(self, ch=24):
        super().__init__()
        self.emb = nn.Embedding(LEVELS, ch)
        self.stack = nn.ModuleList(Causal(ch, d) for d in (1, 2, 4, 8, 16))
        self.head = nn.Conv1d(ch, LEVELS, 1)

    def forward(self, codes):
        h = self.emb(codes).transpose(1, 2)
        for layer in self.stack:
            h = layer(h)
        return self.head(torch.relu(h))


model = Decoder()
opt = torch.optim.Adam(model.parameters(), lr=3e-3)
# the scale starts far too high on purpose and grows quickly: it looks for its height, and overshoots now and then
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 22, growth_interval=5)
g = torch.Generator().manual_seed(SEED)
skipped = 0

for step in range(1, 46):
    codes = glass(6, g)
    with torch.autocast("cpu", dtype=torch.float16):
        logits = model(codes[:, :-1])
        loss = F.cross_entropy(logits.float(), codes[:, 1:])
    before = scaler.get_scale()
    opt.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 2.0)
    scaler.step(opt)
    scaler.update()
    if scaler.get_scale() < before:
        skipped += 1
    print(f"{step:3d} nll {loss.item():.5f} norm {norm.item():.4f} scale 2^{math.log2(before):.0f} skipped {skipped}", flush=True)

print(f"sum|w| {sum(p.detach().abs().sum().item() for p in model.parameters()):.5f}", flush=True)
