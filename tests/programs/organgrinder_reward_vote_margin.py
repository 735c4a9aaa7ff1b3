# Reward model on listener votes: Bradley-Terry with a margin (Llama-2 style, but continuous) and a penalty that
# centres the rewards. margin = log of the vote ratio of the two tunes.
import csv
import io
import random

import torch
from torch import nn
import torch.nn.functional as F


def synth_csv(n=96, seed=2):
    rng = random.Random(seed)
    out = io.StringIO()
    w = csv.writer(out)
    w.writerow(["tune_a", "tune_b", "votes_a", "votes_b"])
    for i in range(n):
        a, b = ("".join(rng.choice("CDEFGAB") for _ in range(rng.randint(5, 12))) for _ in range(2))
        qa, qb = a.count("C") + a.count("G") + 1, b.count("C") + b.count("G") + 1
        va, vb = qa * rng.randint(2, 5), qb * rng.randint(1, 4)
        if i == 50:
            va, vb = 7, 0            # nobody liked it
        w.writerow([a, b, va, vb])
    out.seek(0)
    return list(csv.DictReader(out))


class VotePairs(torch.utils.data.Dataset):
    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    @staticmethod
    def encode(tune, n=12):
        return torch.tensor([" CDEFGAB".index(c) for c in tune.ljust(n)])

    def __getitem__(self, i):
        r = self.rows[i]
        a, b, va, vb = r["tune_a"], r["tune_b"], float(r["votes_a"]), float(r["votes_b"])
        if vb > va:
            a, b, va, vb = b, a, vb, va
        return self.encode(a), self.encode(b), torch.tensor(va), torch.tensor(vb)


class TuneReward(nn.Module):
    def __init__(self, d=24):
        super().__init__()
        self.emb = nn.Embedding(8, d, padding_idx=0)
        self.conv = nn.Conv1d(d, d, 3, padding=1)
        self.norm = nn.LayerNorm(d)
        self.score = nn.Linear(d, 1)

    def forward(self, ids):
        keep = (ids != 0).float()[..., None]
        h = F.relu(self.conv(self.emb(ids).mT)).mT
        pooled = (h * keep).sum(1) / keep.sum(1)
        return self.score(self.norm(pooled)).squeeze(-1)


def bt_loss(r_w, r_l, votes_w, votes_l, centre=0.01):
    odds = votes_w / votes_l
    margin = 0.5 * odds.log()
    rank = -F.logsigmoid(r_w - r_l - margin).mean()
    return rank + centre * (r_w + r_l).pow(2).mean(), (r_w > r_l).float().mean()


def fit():
    torch.manual_seed(2)
    model = TuneReward()
    opt = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=24)
    loader = torch.utils.data.DataLoader(VotePairs(synth_csv()), batch_size=8, shuffle=False)
    step = 0
    for epoch in range(2):
        for w, l, vw, vl in loader:
            step += 1
            loss, acc = bt_loss(model(w), model(l), vw, vl)
            opt.zero_grad()
            loss.backward()
            opt.step()
            sched.step()
            print(f"epoch {epoch} step {step:2d}: bt={loss.item():.5f} acc={acc.item():.3f}")
    return model


if __name__ == "__main__":
    m = fit()
    print(f"done, {sum(p.double().sum().item() for p in m.parameters()):.6f}")
