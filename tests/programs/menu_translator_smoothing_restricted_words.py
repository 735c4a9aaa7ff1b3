"""Menu translation, GRU encoder-decoder with attention; accelerate loop.

The restaurant gives a house vocabulary: words outside it can't be produced.
Label smoothing is switched on when the model has seen its first batches.
"""
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, Dataset

PAD, BOS, EOS = 0, 1, 2
SRC, TGT = 40, 48
FORBIDDEN = list(range(43, 48))          # regional words the house doesn't want


class Menus(Dataset):
    def __init__(self, n):
        g = torch.Generator().manual_seed(77)
        table = torch.randperm(37, generator=g) + 3
        self.pairs = []
        for _ in range(n):
            k = int(torch.randint(2, 8, (1,), generator=g))
            src = torch.randint(3, SRC, (k,), generator=g)
            tgt = table[src - 3].flip(0)
            self.pairs.append((src, torch.cat([torch.tensor([BOS]), tgt, torch.tensor([EOS])])))

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, i):
        return self.pairs[i]


def collate(rows):
    pad = nn.utils.rnn.pad_sequence
    return (pad([r[0] for r in rows], batch_first=True, padding_value=PAD),
            pad([r[1] for r in rows], batch_first=True, padding_value=PAD))


class Translator(nn.Module):
    def __init__(self, dim=40):
        super().__init__()
        self.src = nn.Embedding(SRC, dim, padding_idx=PAD)
        self.tgt = nn.Embedding(TGT, dim, padding_idx=PAD)
        self.encoder = nn.GRU(dim, dim, batch_first=True)
        self.decoder = nn.GRU(dim, dim, batch_first=True)
        self.query = nn.Linear(dim, dim)
        self.out = nn.Linear(2 * dim, TGT)
        house = torch.zeros(TGT)
        house[FORBIDDEN] = float("-inf")
        self.register_buffer("house", house)

    def forward(self, src, tgt):
        keys, state = self.encoder(self.src(src))
        hidden, _ = self.decoder(self.tgt(tgt), state)
        score = self.query(hidden) @ keys.transpose(1, 2)
        score = score.masked_fill((src == PAD)[:, None], -1e9)
        context = score.softmax(-1) @ keys
        return self.out(torch.cat([hidden, context], -1)) + self.house


class LengthNormalisedLoss(nn.Module):
    """Sum over a sentence, divided by the length penalty ((5 + n) / 6) ** alpha."""

    def __init__(self, smoothing, start, alpha=0.6):
        super().__init__()
        self.smoothing, self.start, self.alpha = smoothing, start, alpha

    def forward(self, logits, target, step):
        logp = F.log_softmax(logits, -1)
        real = (target != PAD).float()
        token = -logp.gather(-1, target[..., None]).squeeze(-1)
        if step >= self.start:
            uniform = -logp.mean(-1)
            token = (1 - self.smoothing) * token + self.smoothing * uniform
        penalty = ((5 + real.sum(1)) / 6) ** self.alpha
        return ((token * real).sum(1) / penalty).mean()


def main():
    torch.manual_seed(3)
    accelerator = Accelerator(cpu=True)
    model = Translator()
    opt = torch.optim.AdamW(model.parameters(), lr=4e-3)
    loader = DataLoader(Menus(600), batch_size=16, shuffle=False, collate_fn=collate)
    warm = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 8))
    model, opt, loader, warm = accelerator.prepare(model, opt, loader, warm)
    criterion = LengthNormalisedLoss(smoothing=0.1, start=15)
    for step, (src, tgt) in enumerate(loader, 1):
        logits = model(src, tgt[:, :-1])
        loss = criterion(logits, tgt[:, 1:], step)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        warm.step()
        opt.zero_grad()
        print(f"[{step}] {loss.item():.9f}", flush=True)
    print(f"{sum(p.detach().abs().sum().item() for p in model.parameters()):.6f}", flush=True)


if __name__ == "__main__":
    main()
