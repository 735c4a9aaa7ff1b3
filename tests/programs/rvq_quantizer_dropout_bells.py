"""Toy residual vector quantiser for struck bells (SoundStream style, with quantizer dropout)."""
import math
import random

import torch
from torch import nn
import torch.nn.functional as F

random.seed(11)
torch.manual_seed(11)

SR, FRAME, N_Q, CODES, DIM = 8000, 64, 6, 32, 12


def bell(n=1024):
    f0 = random.uniform(180.0, 420.0)
    t = torch.arange(n) / SR
    out = torch.zeros(n)
    # hum, prime, tierce, quint, nominal
    for ratio, amp, decay in [(0.5, .5, 3), (1, 1., 6), (1.2, .8, 9), (1.5, .4, 14), (2, .9, 20)]:
        out += amp * torch.exp(-decay * t) * torch.sin(2 * math.pi * f0 * ratio * t + random.random() * 6.28)
    return 3.0 * out / out.abs().max()


class VQ(nn.Module):
    def __init__(self, gain):
        super().__init__()
        self.book = nn.Parameter(torch.randn(CODES, DIM) * gain)

    def forward(self, r):
        d = torch.cdist(r.detach(), self.book.detach())
        idx = d.argmin(-1)
        q = F.embedding(idx, self.book)
        pull = F.mse_loss(q, r.detach()) + 0.25 * F.mse_loss(r, q.detach())
        return r + (q - r).detach(), pull


class BellCodec(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Linear(FRAME, DIM)
        self.stages = nn.ModuleList(VQ(0.6 ** (i + 1)) for i in range(N_Q))
        self.dec = nn.Linear(DIM, FRAME)

    def forward(self, x, n_q):
        z = self.enc(x)
        residual, total, pulls = z, torch.zeros_like(z), z.new_zeros(())
        for vq in self.stages[:n_q]:
            q, pull = vq(residual)
            residual = residual - q.detach()
            total = total + q
            pulls = pulls + pull
        return self.dec(total), pulls


bells = torch.stack([bell() for _ in range(24)]).unfold(1, FRAME, FRAME).reshape(-1, FRAME)
codec = BellCodec()
with torch.no_grad():                       # start from the best linear code of the frames
    _, _, v = torch.linalg.svd(bells, full_matrices=False)
    codec.enc.weight.copy_(v[:DIM])
    codec.dec.weight.copy_(v[:DIM].t())
    codec.enc.bias.zero_()
    codec.dec.bias.zero_()
opt = torch.optim.AdamW(codec.parameters(), lr=8e-3, betas=(0.8, 0.99), weight_decay=0.0)

for it in range(1, 91):
    # every so often the bitrate of the batch is zero: the decoder must learn the mean frame
    n_q = random.choice([0, 1, 1, 2, 3, 4, 5, 6, 6, 6])
    loud = 10.0 ** random.uniform(-1.5, 0.5)      # level augmentation, 40 dB
    x = bells[torch.randint(len(bells), (48,))] * loud
    y, pulls = codec(x, n_q)
    loss = F.mse_loss(y, x) + 0.5 * pulls
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    print("it %03d nq %d level %6.3f loss %.7f" % (it, n_q, loud, loss.item()))

print("final", sum(p.detach().abs().sum().item() for p in codec.parameters()))
