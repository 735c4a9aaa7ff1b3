"""Predict voxel doses for prostate plans; organs at risk are judged by their equivalent uniform dose."""
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

ORGANS = {"ptv": -10.0, "rectum": 8.0, "bladder": 6.0}
CENTRES = {"ptv": (0.0, 1.0), "rectum": (-2.6, 0.9), "bladder": (2.4, 1.2)}


class PlanArchive(Dataset):
    """One item is one patient: 90 voxels, their geometry, the clinical dose and the jaw opening."""

    def __init__(self, n_patients=60, voxels=30, seed=11):
        rng = np.random.default_rng(seed)
        self.plans = []
        for pid in range(n_patients):
            jaw = rng.uniform(3.2, 5.0)
            if pid % 60 == 37:  # boost plan, second phase of the treatment
                jaw = 1.1
            pos, label = [], []
            for k, (centre, spread) in enumerate(CENTRES.values()):
                xyz = rng.uniform(-spread, spread, size=(voxels, 3)) * 0.7
                xyz[:, 0] += centre
                pos.append(xyz)
                label += [k] * voxels
            pos = np.concatenate(pos)
            label = np.array(label)
            radius = np.linalg.norm(pos, axis=1)
            dose = 70.0 * np.exp(-(radius / 2.8) ** 2) + rng.normal(0, 0.8, len(pos))
            open_field = np.abs(pos[:, 0]) < jaw
            dose = np.where(open_field, np.clip(dose, 0, None), 0.0)
            feats = np.column_stack([pos, radius, np.full(len(pos), jaw), label == 0, label == 1])
            self.plans.append((feats.astype(np.float32), open_field.astype(np.float32),
                               dose.astype(np.float32) / 70.0, label))

    def __len__(self):
        return len(self.plans)

    def __getitem__(self, i):
        return self.plans[i]


def collate(batch):
    f, o, d, l = zip(*batch)
    return (torch.from_numpy(np.stack(f)), torch.from_numpy(np.stack(o)),
            torch.from_numpy(np.stack(d)), torch.from_numpy(np.stack(l)))


class DoseNet(nn.Module):
    def __init__(self, hidden=32):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(7, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU())
        self.dose = nn.Linear(hidden, 1)

    def forward(self, feats, open_field):
        return nn.functional.softplus(self.dose(self.body(feats)).squeeze(-1)) * open_field


def geud(dose, a):
    return (dose ** a).mean(dim=-1) ** (1.0 / a)


def main():
    torch.manual_seed(5)
    net = DoseNet()
    optim = torch.optim.AdamW(net.parameters(), lr=3e-3)
    loader = DataLoader(PlanArchive(), batch_size=4, shuffle=True, collate_fn=collate)
    step = 0
    for epoch in range(2):
        for feats, open_field, clinical, label in loader:
            step += 1
            planned = net(feats, open_field)
            fidelity = (planned - clinical).square().mean()
            penalty = 0.0
            for k, name in enumerate(ORGANS):
                if name == "ptv":
                    continue
                voxels = planned[label == k].view(len(feats), -1)
                penalty = penalty + geud(voxels, ORGANS[name]).mean()
            loss = fidelity + 0.05 * penalty
            optim.zero_grad()
            loss.backward()
            optim.step()
            print(f"epoch {epoch} step {step:2d} fidelity {fidelity.item():.5f} total {loss.item():.5f}")
    print("sum of squared weights", sum(p.detach().square().sum().item() for p in net.parameters()))


if __name__ == "__main__":
    main()
