"""CTC over sperm-whale click trains. One utterance = energy envelope -> coda symbols. Conv front end, stride 4."""
import math
from typing import Iterator, List, NamedTuple

import torch
from torch import nn

torch.manual_seed(31)
torch.set_num_threads(1)
SYMBOLS = 7          # 0 is the blank


class Clip(NamedTuple):
    wave: torch.Tensor
    coda: List[int]


class Hydrophone:
    """Recordings of one dive. The annotators cut the clips by hand."""

    def __init__(self, seed: int):
        self.g = torch.Generator().manual_seed(seed)
        self.count = 0

    def _int(self, lo, hi):
        return int(torch.randint(lo, hi, (1,), generator=self.g))

    def clip(self) -> Clip:
        self.count += 1
        coda = [self._int(1, SYMBOLS) for _ in range(self._int(3, 7))]
        gap = 16
        if self.count == 134:                    # a rapid buzz: twice as many clicks as usual, very close together
            coda, gap = coda + coda + coda, 3
        n = gap * (len(coda) + 1)
        wave = 0.1 * torch.randn(n, generator=self.g)
        for i, s in enumerate(coda):
            t0 = gap * i + gap // 2
            k = torch.arange(min(gap, n - t0))
            wave[t0:t0 + len(k)] += torch.sin(k * 0.4 * s) * torch.exp(-k / 5.0)
        return Clip(wave, coda)


def collate(clips: List[Clip]):
    wav = nn.utils.rnn.pad_sequence([c.wave for c in clips], batch_first=True)
    wlen = torch.tensor([len(c.wave) for c in clips])
    tgt = torch.tensor([s for c in clips for s in c.coda])
    tlen = torch.tensor([len(c.coda) for c in clips])
    return wav, wlen, tgt, tlen


def loader(dev: Hydrophone, bs: int, n: int) -> Iterator:
    for _ in range(n):
        yield collate([dev.clip() for _ in range(bs)])


class ClickNet(nn.Module):
    def __init__(self, c=24):
        super().__init__()
        self.front = nn.Sequential(nn.Conv1d(1, c, 9, stride=2, padding=4), nn.GELU(),
                                   nn.Conv1d(c, c, 5, stride=2, padding=2), nn.GELU())
        self.rnn = nn.GRU(c, c, bidirectional=True, batch_first=True)
        self.head = nn.Linear(2 * c, SYMBOLS)

    @staticmethod
    def out_len(n):
        return torch.div(torch.div(n + 1, 2, rounding_mode="floor") + 1, 2, rounding_mode="floor")

    def forward(self, wav, wlen):
        x = self.front(wav[:, None]).transpose(1, 2)
        x, _ = self.rnn(x)
        return self.head(x).log_softmax(-1), self.out_len(wlen)


class Noam:
    def __init__(self, opt, peak, warm):
        self.opt, self.peak, self.warm, self.t = opt, peak, warm, 0

    def step(self):
        self.t += 1
        lr = self.peak * min(self.t / self.warm, math.sqrt(self.warm / self.t))
        for g in self.opt.param_groups:
            g["lr"] = lr


net = ClickNet()
opt = torch.optim.Adam(net.parameters(), lr=0.0)
sched = Noam(opt, 5e-3, 10)
criterion = nn.CTCLoss(blank=0)

for i, (wav, wlen, tgt, tlen) in enumerate(loader(Hydrophone(5), 6, 40), 1):
    logp, frames = net(wav, wlen)
    loss = criterion(logp.transpose(0, 1), tgt, frames, tlen)
    sched.step()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(f"{i:>3} | ctc {loss.item():.6f} | frames {int(frames.sum())} | labels {int(tlen.sum())}")
print("weights", f"{sum(float(p.detach().double().sum()) for p in net.parameters()):.6f}")
