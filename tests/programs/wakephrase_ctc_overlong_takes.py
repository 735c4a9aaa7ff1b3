# Streaming wake-phrase model for the handset DSP. CTC over phone-like units, stride 4 in time.
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset


@dataclass
class Recipe:
    n_mels: int = 20
    units: int = 14          # 0 is the blank
    hidden: int = 48
    batch: int = 12
    steps: int = 40
    peak_lr: float = 4e-3
    warmup: int = 8
    seed: int = 7


class Takes(Dataset):
    """Takes of the phrase, at all speaking rates. Rushed ones have fewer frames after the stride than units."""

    def __init__(self, recipe, n):
        g = torch.Generator().manual_seed(recipe.seed)
        self.templates = torch.randn(recipe.units, recipe.n_mels, generator=g)
        self.rows = []
        for _ in range(n):
            length = int(torch.randint(4, 11, (1,), generator=g))
            text = torch.randint(1, recipe.units, (length,), generator=g)
            rushed = torch.rand(1, generator=g).item() < 0.08
            per_unit = 3 if rushed else int(torch.randint(9, 14, (1,), generator=g))
            frames = self.templates[text].repeat_interleave(per_unit, dim=0)
            frames = frames + 0.3 * torch.randn(frames.shape, generator=g)
            self.rows.append((frames, text))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def collate(rows):
    frames, texts = zip(*rows)
    x = nn.utils.rnn.pad_sequence(frames, batch_first=True)
    return (x, torch.tensor([len(f) for f in frames]),
            torch.cat(texts), torch.tensor([len(t) for t in texts]))


class DepthwiseFront(nn.Module):
    def __init__(self, r):
        super().__init__()
        self.depth = nn.Conv1d(r.n_mels, r.n_mels, 4, stride=4, groups=r.n_mels)
        self.point = nn.Conv1d(r.n_mels, r.hidden, 1)

    def forward(self, x):
        return F.relu(self.point(self.depth(x.transpose(1, 2)))).transpose(1, 2)


class WakeNet(nn.Module):
    def __init__(self, r):
        super().__init__()
        self.front = DepthwiseFront(r)
        self.gru = nn.GRU(r.hidden, r.hidden, batch_first=True)
        self.norm = nn.LayerNorm(r.hidden)
        self.head = nn.Linear(r.hidden, r.units)

    def forward(self, x, lengths):
        h, _ = self.gru(self.front(x))
        return self.head(self.norm(h)).log_softmax(-1).transpose(0, 1), lengths // 4


def endless(loader):
    while True:
        yield from loader


def main():
    r = Recipe()
    torch.manual_seed(r.seed)
    loader = DataLoader(Takes(r, 240), batch_size=r.batch, shuffle=True, collate_fn=collate, num_workers=1,
                        generator=torch.Generator().manual_seed(r.seed), drop_last=True)
    model = WakeNet(r)
    opt = torch.optim.AdamW(model.parameters(), lr=r.peak_lr)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min((s + 1) / r.warmup, 1.0))
    # takes that no alignment can explain drop out of the objective
    criterion = nn.CTCLoss(blank=0, zero_infinity=True)
    dropped = 0
    for step, (x, xl, y, yl) in zip(range(1, r.steps + 1), endless(loader)):
        lp, fl = model(x, xl)
        loss = criterion(lp, y, fl, yl)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        opt.step()
        sched.step()
        with torch.no_grad():
            per_take = F.ctc_loss(lp, y, fl, yl, blank=0, reduction="none")
        dropped += int(torch.isinf(per_take).sum())
        print(f"{step:02d} loss={loss.item():.6f} hardest_take={per_take.max().item():.4f} "
              f"impossible_so_far={dropped}", flush=True)


if __name__ == "__main__":
    main()
