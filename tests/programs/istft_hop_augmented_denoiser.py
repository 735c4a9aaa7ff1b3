import math
import torch
import torch.nn as nn

torch.manual_seed(314)

SR, N = 4000, 1600
N_FFT = 128
WIN = torch.hann_window(N_FFT)
# "time resolution augmentation": each step analyses with another hop
HOPS = [32, 40, 64, 16, 32, 48, 64, 32, 24, 64]


def make_batch(n):
    t = torch.arange(N) / SR
    f0 = 120 + 300 * torch.rand(n, 1)
    clean = torch.sin(2 * math.pi * f0 * t) + 0.4 * torch.sin(4 * math.pi * f0 * t + 1.0)
    hiss = 0.5 * torch.randn(n, N)
    return clean, clean + hiss


class MaskNet(nn.Module):
    def __init__(self, bins=N_FFT // 2 + 1):
        super().__init__()
        self.gru = nn.GRU(bins, 32, batch_first=True)
        self.out = nn.Linear(32, bins)

    def forward(self, wav, hop):
        spec = torch.stft(wav, N_FFT, hop_length=hop, window=WIN, return_complex=True)
        feat = torch.log1p(spec.abs()).transpose(1, 2)
        h, _ = self.gru(feat)
        mask = torch.sigmoid(self.out(h)).transpose(1, 2)
        return torch.istft(spec * mask, N_FFT, hop_length=hop, window=WIN, length=wav.size(-1))


def si_sdr(est, ref):
    a = (est * ref).sum(-1, keepdim=True) / ref.pow(2).sum(-1, keepdim=True)
    return 10 * torch.log10((a * ref).pow(2).sum(-1) / (est - a * ref).pow(2).sum(-1))


net = MaskNet()
optim = torch.optim.AdamW(net.parameters(), lr=3e-3)
step = 0
for epoch in range(4):
    for hop in HOPS:
        step += 1
        clean, noisy = make_batch(6)
        # from the third epoch on the hops are stretched a little more
        h = hop if epoch < 2 else hop * 2
        est = net(noisy, h)
        loss = -si_sdr(est, clean).mean()
        optim.zero_grad()
        loss.backward()
        optim.step()
        print("step %d hop %d loss %.6f" % (step, h, loss.item()))

print("final %.5f" % sum(p.abs().sum() for p in net.parameters()).item())
