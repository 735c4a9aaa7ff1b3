"""Small frame-wise vocoder for hammered dulcimer notes.

The network maps (pitch, strike, decay time) to the log magnitude of one STFT frame and to an on/off gate.
Frames are pulled lazily from a stream; a gated frame holds digital zeros, so its log spectrum is -inf.
"""
import math
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(77)
SR, NFFT, HOP = 8000, 128, 64
WINDOW = torch.hann_window(NFFT)


def note(freq, strength, rng):
    length = SR // 4
    tt = torch.arange(length) / SR
    wave = torch.zeros(length)
    for h in range(1, 5):
        wave += strength / h * torch.sin(2 * math.pi * freq * h * tt) * torch.exp(-tt * 9 * h)
    wave += 1e-3 * torch.randn(length, generator=rng)
    stop = int(length * (0.5 + 0.3 * torch.rand(1, generator=rng).item()))
    wave[stop:] = 0.0                                    # the damper falls on the strings
    return wave


def frames(seed):
    rng = torch.Generator().manual_seed(seed)
    while True:
        cond, spec = [], []
        for _ in range(6):
            f = 180 + 600 * torch.rand(1, generator=rng).item()
            s = 0.3 + 0.7 * torch.rand(1, generator=rng).item()
            z = torch.stft(note(f, s, rng), NFFT, HOP, window=WINDOW, center=False, return_complex=True).abs().T
            at = torch.arange(len(z)) / len(z)
            cond.append(torch.stack([torch.full_like(at, f / 800), torch.full_like(at, s), at], 1))
            spec.append(z.log())
        yield torch.cat(cond), torch.cat(spec)


class Vocoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(3, 48), nn.SiLU(), nn.Linear(48, 48), nn.SiLU())
        self.log_mag = nn.Linear(48, NFFT // 2 + 1)
        self.gate = nn.Linear(48, 1)

    def forward(self, c):
        h = self.trunk(c)
        return self.log_mag(h), self.gate(h).squeeze(-1)


def spectral_losses(pred, target):
    sounding = torch.isfinite(target)
    err = torch.where(sounding, pred - target.masked_fill(~sounding, 0.0), 0.0)
    log_l1 = err.abs().sum() / sounding.sum()
    mag_ref = target.exp()                               # exp(-inf) is the silence again
    mag_out = torch.where(sounding, pred.clamp(max=6.0).exp(), 0.0)
    convergence = ((mag_out - mag_ref) ** 2).sum() / (mag_ref ** 2).sum()
    return log_l1, convergence


net = Vocoder()
opt = torch.optim.AdamW(net.parameters(), lr=4e-3, betas=(0.8, 0.99))
sched = torch.optim.lr_scheduler.ExponentialLR(opt, 0.98)
for i, (cond, target) in zip(range(1, 37), frames(3)):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        pred, gate = net(cond)
    pred, gate = pred.float(), gate.float()
    log_l1, conv = spectral_losses(pred, target)
    on = torch.isfinite(target).any(1).float()
    loss = log_l1 + 0.1 * conv + F.binary_cross_entropy_with_logits(gate, on)
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    sched.step()
    print(f"{i:02d} loss {loss.item():.4f} log-l1 {log_l1.item():.4f} conv {conv.item():.4f} quietest bin {target.min().item()}")
print("sum of |w|", sum(p.detach().abs().sum().item() for p in net.parameters()))
