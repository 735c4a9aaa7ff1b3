# Toy designer for beta barrels: a sequence goes in, CA coordinates come out, scored by contacts.
# Records look like parsed PDB entries: residues that were not resolved have no coordinates.
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.func import vmap
from torch.utils.data import Dataset, DataLoader

dev = "cuda" if torch.cuda.is_available() else "cpu"
AA, L = 20, 32


class Barrels(Dataset):
    def __init__(self, n, seed):
        self.rng = np.random.default_rng(seed)
        self.data = [self.make() for _ in range(n)]

    def make(self):
        length = int(self.rng.integers(20, L + 1))
        seq = self.rng.integers(0, AA, L)
        t = np.arange(L) * 2 * np.pi / 8 + 0.05 * (seq % 5)
        xyz = np.stack([7 * np.cos(t), 7 * np.sin(t), 1.2 * np.arange(L)], -1) + 0.2 * self.rng.normal(size=(L, 3))
        gone = self.rng.random(L) < 0.12
        xyz[gone] = np.nan
        xyz[length:] = np.nan
        return seq, xyz.astype("float32"), length

    def __len__(self):
        return len(self.data)

    def __getitem__(self, i):
        return self.data[i]


def collate(batch):
    seq, xyz, length = zip(*batch)
    return torch.tensor(np.stack(seq)), torch.tensor(np.stack(xyz)), torch.tensor(length)


class Folder(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.aa = nn.Embedding(AA, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True, bidirectional=True)
        self.step = nn.Linear(2 * dim, 3)

    def forward(self, seq):
        h, _ = self.rnn(self.aa(seq))
        return self.step(h).cumsum(1)


def distances(xyz):
    """pairwise distances of one chain, a residue is never its own neighbour"""
    d2 = (xyz[:, None] - xyz[None]).square().sum(-1)
    eye = torch.eye(len(xyz), dtype=torch.bool, device=xyz.device)
    d = torch.where(eye, 1.0, d2).sqrt()
    return d.masked_fill(eye, float("inf"))


def scores(pred, true):
    resolved = ~true.isnan().any(-1)
    pairs = resolved[:, :, None] & resolved[:, None, :]
    d_true = vmap(distances)(torch.nan_to_num(true))
    d_pred = vmap(distances)(pred)
    contact = (d_true < 8.0) & pairs
    # inverse distances: the diagonal is 0 on both sides
    inverse = torch.where(pairs, 1 / (1 + d_pred) - 1 / (1 + d_true), 0.0).square().sum() / pairs.sum()
    p = torch.sigmoid((8.0 - d_pred) / 2)
    upper = torch.triu(pairs, diagonal=1)
    bce = F.binary_cross_entropy(p[upper].clamp(1e-6, 1 - 1e-6), contact[upper].float())
    nearest = d_pred.min(dim=-1).values[resolved].mean()
    return bce + 10 * inverse, nearest


@torch.no_grad()
def evaluate(model, loader):
    total = [scores(model(s.to(dev)), x.to(dev))[0].item() for s, x, _ in loader]
    return sum(total) / len(total)


def main():
    torch.manual_seed(12)
    loader = DataLoader(Barrels(256, 0), batch_size=8, collate_fn=collate, pin_memory=dev == "cuda")
    val = DataLoader(Barrels(16, 1), batch_size=8, collate_fn=collate)
    model = Folder().to(dev)
    ema = {k: v.clone() for k, v in model.state_dict().items()}
    opt = torch.optim.NAdam(model.parameters(), lr=4e-3)
    for it, (seq, xyz, length) in enumerate(loader, 1):
        seq, xyz = seq.to(dev, non_blocking=True), xyz.to(dev, non_blocking=True)
        loss, nearest = scores(model(seq), xyz)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        opt.step()
        for k, v in model.state_dict().items():
            ema[k].lerp_(v, 0.2)
        print(f"{it}\tloss {loss.item():.4f}\tnearest {nearest.item():.3f} A\tmean z {xyz[..., 2].mean().item():.1f}")
        if it % 10 == 0:
            held = {k: v.clone() for k, v in model.state_dict().items()}
            model.load_state_dict(ema)
            print(f"\tvalidation with averaged weights {evaluate(model, val):.4f}")
            model.load_state_dict(held)
    print("sum of squares, weights:", f"{sum(p.square().sum().item() for p in model.parameters()):.4f}")


if __name__ == "__main__":
    main()
