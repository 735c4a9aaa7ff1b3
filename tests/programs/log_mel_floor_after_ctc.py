# tiny keyword CTC: digital silence gives log(0) = -inf mels which are floored afterwards,
# and alignments that cannot exist are zeroed by zero_infinity
import math, torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import Dataset, DataLoader

torch.manual_seed(1234)
SR, NFFT, HOP = 4000, 128, 64
ALPHABET = "_abcdefgh"


def filterbank(n_mels=16):
    fb = torch.zeros(n_mels, NFFT // 2 + 1)
    centers = torch.linspace(1, NFFT // 2 - 1, n_mels + 2)
    k = torch.arange(NFFT // 2 + 1).float()
    for m in range(n_mels):
        up = (k - centers[m]) / (centers[m + 1] - centers[m])
        down = (centers[m + 2] - k) / (centers[m + 2] - centers[m + 1])
        fb[m] = torch.minimum(up, down).clamp(min=0)
    return fb


FB = filterbank()
WINDOW = torch.hann_window(NFFT)


class Utterances(Dataset):
    def __init__(self, n):
        g = torch.Generator().manual_seed(9)
        self.items = []
        for i in range(n):
            length = int(torch.randint(3, 6, (1,), generator=g))
            word = torch.randint(1, len(ALPHABET), (length,), generator=g)
            wave = []
            for c in word.tolist():
                t = torch.arange(420) / SR
                wave.append(torch.sin(2 * math.pi * (150 + 180 * c) * t))
                wave.append(torch.zeros(300))            # muted microphone between the letters
            wave = torch.cat(wave)
            if i % 7 == 3:
                wave = wave[:200]                        # cut off recording: fewer frames than letters
            self.items.append((wave, word))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        wave, word = self.items[i]
        power = torch.stft(wave, NFFT, HOP, window=WINDOW, center=False, return_complex=True).abs() ** 2
        mel = torch.log(FB @ power)
        mel = torch.clamp(mel, min=-11.5)
        return mel.t(), word


def collate(batch):
    mels, words = zip(*batch)
    t = torch.tensor([len(m) for m in mels])
    return nn.utils.rnn.pad_sequence(mels), t, torch.cat(words), torch.tensor([len(w) for w in words])


class Recogniser(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(16, 40)
        self.rnn = nn.GRU(40, 40, bidirectional=True)
        self.out = nn.Linear(80, len(ALPHABET))

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h = torch.relu(self.inp(x / 5.0))
        h, _ = self.rnn(h.float())
        return self.out(h).log_softmax(-1)


net = Recogniser()
opt = torch.optim.Adam(net.parameters(), 4e-3)
step = 0
for epoch in range(4):
    for x, tx, y, ty in DataLoader(Utterances(56), batch_size=8, collate_fn=collate):
        per_clip = F.ctc_loss(net(x), y, tx, ty, reduction="none", zero_infinity=True)
        loss = (per_clip / ty).mean()
        opt.zero_grad(); loss.backward(); opt.step()
        step += 1
        print("step %d loss %.6f zeroed %d" % (step, loss.item(), (per_clip == 0).sum()))
print("final", sum(p.detach().abs().sum().item() for p in net.parameters()))
