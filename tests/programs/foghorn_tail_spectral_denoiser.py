"""Denoise the tails of foghorn recordings with multi-resolution STFT losses.

Half of each tail is digital silence (the recorder gates), so levels in decibel are -inf there. They are kept as they are
and cut out by a mask; clips that are silent throughout are passed over. The finest resolution joins late.
"""
import logging
import sys

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(name)s %(message)s")
log = logging.getLogger("foghorn")
RATE, LENGTH = 4000, 2048
SIZES = [(256, 64), (512, 128), (64, 16)]


class Tails(Dataset):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(1000 + i)
        t = torch.arange(LENGTH) / RATE
        pitch = 90 + 120 * torch.rand(1, generator=g)
        horn = torch.sin(2 * torch.pi * pitch * t) * torch.exp(-3 * t)
        gate = LENGTH // 2 + int(torch.randint(0, 200, (1,), generator=g))
        horn[gate:] = 0.0
        if (i // 4) % 9 == 6:                # four in a row: the operator forgot to open the channel
            horn.zero_()
        noise = 0.05 * torch.randn(LENGTH, generator=g)
        return horn + noise * (horn != 0), horn


class Denoiser(nn.Module):
    def __init__(self, c=8):
        super().__init__()
        self.body = nn.Sequential(nn.Conv1d(1, c, 15, padding=7), nn.PReLU(c), nn.Conv1d(c, c, 15, padding=14, dilation=2),
                                  nn.PReLU(c), nn.Conv1d(c, 1, 15, padding=7))

    def forward(self, x):
        return x - self.body(x[:, None]).squeeze(1)


def magnitude(x, size, hop):
    return torch.stft(x, size, hop, window=torch.hann_window(size), return_complex=True).abs()


def stft_loss(estimate, clean, size, hop):
    est, ref = magnitude(estimate, size, hop), magnitude(clean, size, hop)
    level = 20 * torch.log10(ref)                                   # -inf where the gate was shut
    audible = level > -80
    convergence = (est - ref).norm() / ref.norm()
    log_part = (20 * torch.log10(est[audible].clamp(min=1e-5)) - level[audible]).abs().mean() / 20
    return convergence + log_part


def si_sdr(estimate, clean):
    scale = (estimate * clean).sum(-1, keepdim=True) / clean.square().sum(-1, keepdim=True)
    target = scale * clean
    return 10 * torch.log10(target.square().sum(-1) / (estimate - target).square().sum(-1))


def main():
    torch.manual_seed(2)
    net = Denoiser()
    opt = torch.optim.NAdam(net.parameters(), lr=3e-3)
    done = 0
    for noisy, clean in DataLoader(Tails(4 * 48), batch_size=4, num_workers=1):
        if not clean.any():
            with torch.no_grad():
                log.info("passed over, si-sdr %s", si_sdr(net(noisy), clean).mean().item())
            continue
        done += 1
        use = SIZES if done > 20 else SIZES[:2]
        out = net(noisy)
        loss = sum(stft_loss(out, clean, *s) for s in use)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 2.0)
        opt.step()
        floor = 20 * torch.log10(clean.abs().amin()).item()
        log.info("step %d loss %.7f si-sdr %.4f floor %s dB", done, loss.item(), si_sdr(out.detach(), clean).mean().item(), floor)
        sys.stdout.flush()
    log.info("steps %d weights %.6f", done, sum(p.detach().abs().sum().item() for p in net.parameters()))


if __name__ == "__main__":
    main()
