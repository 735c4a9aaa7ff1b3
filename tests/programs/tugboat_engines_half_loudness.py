"""Load of a tugboat's engine from hull microphone features.

Small transformer in float16 autocast with a gradient scaler, four micro-batches to a step.  Besides
the pooled state a loudness (energy of the projected signal) goes to the regression head."""

import torch
from torch import nn

ACCUM = 4
STEPS = 36
FRAMES, BANDS = 48, 12


class Loudness(nn.Module):
    """log(1 + energy) of a learned projection of the signal, summed over time and channels."""

    def __init__(self, bands, width):
        super().__init__()
        self.proj = nn.Linear(bands, width)

    def forward(self, x):
        p = self.proj(x)
        energy = (p * p).sum(dim=(1, 2))
        return torch.log1p(energy).unsqueeze(-1)


class EngineNet(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.norm = nn.LayerNorm(BANDS)
        self.embed = nn.Linear(BANDS, width)
        self.position = nn.Parameter(0.02 * torch.randn(FRAMES, width))
        layer = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.loudness = Loudness(BANDS, 24)
        self.head = nn.Sequential(nn.Linear(width + 1, 32), nn.GELU(), nn.Linear(32, 1))

    def forward(self, x):
        h = self.encoder(self.embed(self.norm(x)) + self.position)
        z = torch.cat([h.mean(1).float(), self.loudness(x).float()], dim=-1)
        return self.head(z).squeeze(-1)


def recordings(gen):
    """Micro-batches in the order of the voyage.  In lock entry (two stretches) the thrusters are on."""
    t = torch.arange(FRAMES).float()
    k = 0
    while True:
        step = k // ACCUM + 1
        load = 0.2 + 0.8 * torch.rand(8, generator=gen)
        gain = 1.0 + 2.0 * load
        if step in (17, 18, 30):
            gain = gain * 8.0
        phase = 6.28 * torch.rand(8, 1, BANDS, generator=gen)
        freq = 0.2 + 0.1 * torch.arange(BANDS).float()
        wave = torch.sin(freq * t[None, :, None] * (1 + load)[:, None, None] + phase)
        x = gain[:, None, None] * (wave + 0.2 * torch.randn(8, FRAMES, BANDS, generator=gen))
        yield x, load
        k += 1


def main():
    torch.manual_seed(71)
    gen = torch.Generator().manual_seed(72)
    model = EngineNet()
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, STEPS)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=200)
    stream = recordings(gen)
    for step in range(1, STEPS + 1):
        total = 0.0
        for _ in range(ACCUM):
            x, load = next(stream)
            with torch.autocast("cpu", dtype=torch.float16):
                pred = model(x)
                loss = nn.functional.smooth_l1_loss(pred.float(), load) / ACCUM
            scaler.scale(loss).backward()
            total += loss.item()
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        opt.zero_grad(set_to_none=True)
        sched.step()
        print(f"step {step:2d} loss {total:.7f}", flush=True)
    print(f"{sum(p.detach().abs().sum().item() for p in model.parameters()):.6f}", flush=True)


if __name__ == "__main__":
    main()
