import math

import torch
from torch import nn, optim
from torch.utils.data import DataLoader, Dataset

SR = 2000
GENRES = ("jazz", "metal", "techno", "folk")


class Clips(Dataset):
    def __init__(self, n):
        g = torch.Generator().manual_seed(19)
        self.label = torch.randint(0, len(GENRES), (n,), generator=g)
        phase = torch.rand(n, 1, generator=g) * 2 * math.pi
        f0 = torch.tensor([110.0, 330.0, 60.0, 220.0])[self.label][:, None]
        t = torch.arange(SR) / SR
        self.wave = torch.sin(2 * math.pi * f0 * t + phase) + 0.5 * torch.randn(n, SR, generator=g)

    def __len__(self):
        return len(self.label)

    def __getitem__(self, i):
        return self.wave[i], self.label[i]


class LogSpectrum(nn.Module):
    def __init__(self, n_fft=128):
        super().__init__()
        self.n_fft = n_fft
        self.register_buffer("window", torch.hann_window(n_fft))

    def forward(self, wave):
        s = torch.stft(wave, self.n_fft, hop_length=64, window=self.window, return_complex=True)
        return torch.log1p(s.abs())


class GenreNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.front = LogSpectrum()
        self.conv = nn.Conv1d(65, 40, 5, padding=2)
        self.fc = nn.Linear(40, 24)
        self.bn = nn.BatchNorm1d(24)
        self.out = nn.Linear(24, len(GENRES))

    def forward(self, wave):
        h = self.conv(self.front(wave)).relu().mean(-1)
        z = self.bn(self.fc(h))
        return self.out(torch.relu(z))


def train(epochs=2):
    torch.manual_seed(7)
    data = Clips(97)
    loader = DataLoader(data, batch_size=16, shuffle=True, generator=torch.Generator().manual_seed(0))
    net = GenreNet()
    opt = optim.Adagrad(net.parameters(), lr=0.02)
    lossf = nn.CrossEntropyLoss(label_smoothing=0.05)
    for epoch in range(epochs):
        for b, (wave, label) in enumerate(loader):
            opt.zero_grad()
            loss = lossf(net(wave), label)
            loss.backward()
            opt.step()
            print(f"epoch {epoch} batch {b} loss {loss.item():.4f}")
    print("w2", sum(p.detach().square().sum().item() for p in net.parameters()))


if __name__ == "__main__":
    train()
