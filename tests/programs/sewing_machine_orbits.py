# Needle-bar wear from two-axis vibration of industrial sewing machines. The filters run in bfloat16.
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class VibrationLog(Dataset):
    def __init__(self, n=128, length=96, idle=(59,)):
        g = torch.Generator().manual_seed(2)
        self.rows = []
        s = torch.arange(length) / length
        for i in range(n):
            wear = torch.rand(1, generator=g).item()
            rpm = 8 + 6 * torch.rand(1, generator=g)
            phase = 6.28 * torch.rand(1, generator=g)
            ax = torch.sin(6.28 * rpm * s + phase) + wear * torch.sin(12.56 * rpm * s)
            ay = 0.6 * torch.cos(6.28 * rpm * s + phase) + 0.05 * torch.randn(length, generator=g)
            rec = torch.stack([ax + 0.05 * torch.randn(length, generator=g), ay])
            if i in idle:                       # operator at lunch: below the gate of the logger
                rec, wear = rec * 0.01, 0.0
            rec = torch.where(rec.abs() < 0.1, 0.0, rec)
            self.rows.append({"accel": rec, "labels": torch.tensor(wear)})

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


class Orbit(nn.Module):
    """Radius of the shaft orbit after a calibration filter on each axis."""
    def __init__(self, taps=5):
        super().__init__()
        self.filter = nn.Conv1d(2, 2, taps, padding=taps // 2, groups=2, bias=False)

    def forward(self, accel):
        f = self.filter(accel)
        return torch.hypot(f[:, 0], f[:, 1])


class WearModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.orbit = Orbit()
        self.features = nn.Conv1d(1, 8, 9, stride=4)
        self.readout = nn.Linear(8, 1)

    def forward(self, accel, labels=None):
        r = self.orbit(accel)
        z = torch.tanh(self.features(r.unsqueeze(1))).mean(-1)
        wear = self.readout(z).squeeze(-1).float()
        return {"loss": (wear - labels).pow(2).mean(), "logits": wear}


class Workshop:
    def __init__(self, seed=90):
        torch.manual_seed(seed)
        self.loader = DataLoader(VibrationLog(), batch_size=4)
        self.model = WearModel()
        filters = list(self.model.orbit.parameters())
        rest = [*self.model.features.parameters(), *self.model.readout.parameters()]
        self.slow = torch.optim.SGD(filters, lr=0.02)
        self.fast = torch.optim.Adam(rest, lr=8e-3, amsgrad=True)
        self.warmup = torch.optim.lr_scheduler.LinearLR(self.fast, 0.3, 1.0, total_iters=6)

    def shift(self):
        for number, sheet in enumerate(self.loader, start=1):
            self.slow.zero_grad()
            self.fast.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                out = self.model(**sheet)
            out["loss"].backward()
            self.slow.step()
            self.fast.step()
            self.warmup.step()
            yield number, out["loss"].item()


shop = Workshop()
for number, loss in shop.shift():
    print(f"sheet={number} loss={loss:.6f}")
print("weights, absolute sum", sum(w.detach().abs().sum().item() for w in shop.model.parameters()))
