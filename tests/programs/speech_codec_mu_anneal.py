import math
import torch
import torch.nn as nn
import torch.nn.functional as F

# tiny speech codec: compand -> strided conv encoder -> 4 bit latent -> decoder -> expand
# we begin with telephone companding (mu = 255) and relax it to linear pcm

torch.manual_seed(1876)
SR, N = 8000, 320
STEPS = 34
RELAX = 22


def voiced(batch):
    n = torch.arange(N) / SR
    f0 = 90 + 130 * torch.rand(batch, 1)
    x = torch.zeros(batch, N)
    for h in range(1, 7):
        x = x + torch.sin(2 * math.pi * f0 * h * n + 6.28 * torch.rand(batch, 1)) / h
    x = x * (0.15 + 0.5 * torch.rand(batch, 1))
    return (x / 2.5).clamp(-1, 1) + 0.002 * torch.randn(batch, N)


class RoundThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z):
        return torch.round(z * 7.5) / 7.5

    @staticmethod
    def backward(ctx, g):
        return g


class Codec(nn.Module):
    def __init__(self, ch=12):
        super().__init__()
        self.enc1 = nn.Conv1d(1, ch, 8, stride=4, padding=2)
        self.enc2 = nn.Conv1d(ch, 6, 4, stride=2, padding=1)
        self.dec1 = nn.ConvTranspose1d(6, ch, 4, stride=2, padding=1)
        self.dec2 = nn.ConvTranspose1d(ch, 1, 8, stride=4, padding=2)

    def forward(self, pcm, mu):
        companded = pcm.sign() * torch.log1p(mu * pcm.abs()) / math.log1p(mu)
        h = F.elu(self.enc1(companded.unsqueeze(1)))
        code = RoundThrough.apply(torch.tanh(self.enc2(h)))
        y = self.dec2(F.elu(self.dec1(code))).squeeze(1)
        return y, companded


codec = Codec()
opt = torch.optim.Adam(codec.parameters(), lr=4e-3)
window = torch.hann_window(64)

step = 0
while step < STEPS:
    mu = 255.0 * max(0.0, 1.0 - step / RELAX)
    pcm = voiced(6)
    y, ref = codec(pcm, mu)
    wave = F.l1_loss(y, ref)
    Y = torch.stft(y, 64, 32, window=window, return_complex=True).abs()
    R = torch.stft(ref, 64, 32, window=window, return_complex=True).abs()
    spec = F.l1_loss(Y, R)
    loss = wave + 0.1 * spec
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    step += 1
    print("%3d | mu %6.1f | wave %.4f | spec %.4f" % (step, mu, wave.item(), spec.item()))

s = 0.0
for p in codec.parameters():
    s += float((p.detach() ** 2).sum())
print("energy of the codec's weights %.5f" % s)
