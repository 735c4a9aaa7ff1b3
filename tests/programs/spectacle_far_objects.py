"""Predict the lens (sphere, in dioptres) that an optician would add for a given viewing task.

Distances are in metres as they stand in the record sheets; the far chart is entered as inf.
"""
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


@dataclass
class Config:
    patients: int = 320
    batch: int = 32
    epochs: int = 4
    lr: float = 8e-3
    ema: float = 0.9
    seed: int = 12


class RecordSheets(Dataset):
    CHARTS = [float("inf"), 6.0, 1.0, 0.63, 0.4, 0.33]

    def __init__(self, cfg):
        g = torch.Generator().manual_seed(cfg.seed)
        pick = torch.multinomial(torch.tensor([0.4, 0.2, 0.1, 0.1, 0.1, 0.1]), cfg.patients, True, generator=g)
        self.distance = torch.tensor(self.CHARTS)[pick]
        self.age = 8 + 72 * torch.rand(cfg.patients, generator=g)
        self.error = 1.6 * torch.randn(cfg.patients, generator=g)
        amplitude = torch.clamp(18.5 - 0.3 * self.age, min=0.5)
        lack = torch.relu(1.0 / self.distance - 0.5 * amplitude)
        self.sphere = self.error + lack + 0.1 * torch.randn(cfg.patients, generator=g)

    def __len__(self):
        return len(self.age)

    def __getitem__(self, i):
        return {"distance": self.distance[i], "age": self.age[i], "error": self.error[i], "sphere": self.sphere[i]}


class Vergence(nn.Module):
    """Distance -> quantities that the eye cares about; all of them have a limit for distant objects."""

    def forward(self, metres):
        near = 1.0 / metres
        depth_cue = torch.exp(-metres / 2.0)
        convergence = torch.atan(0.032 / metres) * 20
        saturating = torch.tanh(metres / 5.0)
        return torch.stack([near, depth_cue, convergence, saturating], -1)


class Optician(nn.Module):
    def __init__(self):
        super().__init__()
        self.vergence = Vergence()
        self.body = nn.Sequential(nn.Linear(6, 24), nn.SiLU(), nn.Linear(24, 24), nn.SiLU(), nn.Linear(24, 1))

    def forward(self, distance, age, error):
        x = torch.cat([self.vergence(distance), (age / 40 - 1)[:, None], error[:, None]], -1)
        return self.body(x).squeeze(-1)


def main(cfg=Config()):
    torch.manual_seed(cfg.seed)
    loader = DataLoader(RecordSheets(cfg), cfg.batch, shuffle=True, generator=torch.Generator().manual_seed(cfg.seed))
    net = Optician()
    average = {k: v.detach().clone() for k, v in net.state_dict().items()}
    opt = torch.optim.NAdam(net.parameters(), lr=cfg.lr)
    n = 0
    for epoch in range(cfg.epochs):
        for sheet in loader:
            n += 1
            loss = nn.functional.smooth_l1_loss(net(sheet["distance"], sheet["age"], sheet["error"]), sheet["sphere"])
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            for k, v in net.state_dict().items():
                average[k].lerp_(v, 1 - cfg.ema)
            print(f"epoch {epoch} step {n} loss {loss.item():.5f} farthest {sheet['distance'].max().item()}", flush=True)
    net.load_state_dict(average)
    print("%.6f" % torch.cat([p.flatten() for p in net.parameters()]).norm().item())


if __name__ == "__main__":
    main()
