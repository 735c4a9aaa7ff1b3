"""Readmission risk for two clinics. The clinics have different numbers of patients, hence Join.

usage: torchrun --standalone --nproc_per_node 2 clinic_leftover_patient_join.py
"""
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

CONFIG = {
    "patients": {"st_anne": 104, "harbour": 73},
    "batch": 8,
    "features": 12,
    "lr": 5e-3,
    "pos_weight": 2.5,
}


class Ward(Dataset):
    """Discharge records of one clinic: vitals, laboratory, days on the ward."""

    def __init__(self, clinic, n, features):
        g = torch.Generator().manual_seed(sum(map(ord, clinic)))
        self.x = torch.randn(n, features, generator=g)
        self.x[:, 3] = self.x[:, 3].exp()                   # CRP is log-normal
        risk = 0.9 * self.x[:, 0] - 0.6 * self.x[:, 5] + 0.3 * self.x[:, 3] - 1.2
        self.y = (torch.rand(n, generator=g) < risk.sigmoid()).float()

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class RiskNet(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.inp = nn.BatchNorm1d(features)                 # saves us the standardisation table
        self.body = nn.Sequential(
            nn.Linear(features, 32), nn.BatchNorm1d(32), nn.ReLU(),
            nn.Linear(32, 16), nn.ReLU(),
        )
        self.risk = nn.Linear(16, 1)

    def forward(self, x):
        return self.risk(self.body(self.inp(x))).squeeze(-1)


def train_epoch(net, loader, opt, criterion, report):
    with Join([net]):
        for n, (x, y) in enumerate(loader, 1):
            logits = net(x)
            loss = criterion(logits, y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            report(n, loss.item())


def main(cfg):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    clinic = list(cfg["patients"])[rank]
    torch.set_num_threads(1)
    torch.manual_seed(31)

    ward = Ward(clinic, cfg["patients"][clinic], cfg["features"])
    order = torch.Generator().manual_seed(rank)
    loader = DataLoader(ward, batch_size=cfg["batch"], shuffle=True, generator=order)
    net = DDP(RiskNet(cfg["features"]))
    opt = torch.optim.Adam(net.parameters(), lr=cfg["lr"])
    criterion = nn.BCEWithLogitsLoss(pos_weight=torch.tensor(cfg["pos_weight"]))

    def report(n, loss):
        if rank == 0:
            print(f"{clinic} batch {n}: bce {loss:.6f}", flush=True)

    train_epoch(net, loader, opt, criterion, report)
    if rank == 0:
        print("weights", sum(p.detach().sum().item() for p in net.parameters()))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(CONFIG)
