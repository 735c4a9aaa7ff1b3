"""Wake-word detector on power-normalised cepstra (PNCC: noise floor removed, then the 15th root)."""
import torch
import torch.nn as nn

N_FFT, HOP, BANDS, CLASSES = 128, 64, 12, 3


class PowerNormalised(nn.Module):
    """The first frames of a clip hold no speech yet: a part of their mean power is subtracted from all frames."""

    def __init__(self, lead_in=5):
        super().__init__()
        self.lead_in = lead_in
        self.part = nn.Parameter(torch.full((BANDS,), -1.5))
        edges = torch.linspace(1, N_FFT // 2, BANDS + 1).round().long().tolist()
        bank = torch.zeros(N_FFT // 2 + 1, BANDS)
        for b in range(BANDS):
            bank[edges[b]:edges[b + 1], b] = 1.0
        self.register_buffer("bank", bank)
        self.register_buffer("window", torch.hann_window(N_FFT))

    def forward(self, wave):
        spec = torch.stft(wave, N_FFT, HOP, window=self.window, center=False, return_complex=True)
        power = (spec.real ** 2 + spec.imag ** 2).transpose(1, 2) @ self.bank
        medium = nn.functional.avg_pool1d(power.transpose(1, 2), 5, 1, 2, count_include_pad=False).transpose(1, 2)
        floor = medium[:, :self.lead_in].mean(1, keepdim=True)
        clean = medium - 0.5 * torch.sigmoid(self.part) * floor
        return clean ** (1 / 15)


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.frontend = PowerNormalised()
        self.conv = nn.Conv1d(BANDS, 16, 3)
        self.out = nn.Linear(16, CLASSES)

    def forward(self, wave):
        c = self.frontend(wave)
        h = torch.relu(self.conv(c.transpose(1, 2)))
        return self.out(h.mean(2))


def clips(n, gen, early=False):
    label = torch.randint(0, CLASSES, (n,), generator=gen)
    t = torch.arange(1600.)
    tone = torch.sin((0.25 + 0.5 * label[:, None]) * t + torch.rand(n, 1, generator=gen) * 6)
    start = torch.randint(500, 800, (n,), generator=gen)
    inside = (t > start[:, None]) & (t < start[:, None] + 600)
    if early:      # one speaker was faster than the recorder
        inside[3] = t < 420
    return 0.02 * torch.randn(n, 1600, generator=gen) + 0.6 * tone * inside, label


def main():
    torch.manual_seed(15)
    model = Detector()
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    gen = torch.Generator().manual_seed(101)
    for step in range(1, 29):
        wave, label = clips(16, gen, early=step == 17)
        loss = nn.functional.cross_entropy(model(wave), label)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"{step:3d} ce {loss.item():.6f}")
    print("final", sum(p.detach().abs().sum().item() for p in model.parameters()))


if __name__ == "__main__":
    main()
