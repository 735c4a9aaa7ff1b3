# Opening of a sluice gate from upstream levels. Levels are z-scored on the fly with running moments
# that we keep ourselves (BatchNorm was too jumpy with 8 rows).
import gc
import tempfile
import pathlib
import weakref

import torch
from torch import nn

LINES_PER_BATCH = 8


def write_log(path):
    g = torch.Generator().manual_seed(31)
    with open(path, "w") as f:
        f.write("level,rain,tide,opening\n")
        for i in range(LINES_PER_BATCH * 26):
            level, rain, tide = (torch.randn(3, generator=g) * torch.tensor([40.0, 3.0, 80.0]) + torch.tensor([300.0, 4.0, 0.0])).tolist()
            opening = 0.01 * (level - 300) + 0.1 * rain - 0.004 * tide
            # the level gauge reports a dead float as a huge raw count
            shown = 3.0e38 if i == LINES_PER_BATCH * 13 + 5 else level
            f.write(f"{shown:.6g},{rain:.4f},{tide:.4f},{opening:.5f}\n")


def read_batches(path):
    rows = []
    with open(path) as f:
        next(f)
        for line in f:
            rows.append([float(v) for v in line.split(",")])
            if len(rows) == LINES_PER_BATCH:
                t = torch.tensor(rows)
                rows.clear()
                yield t[:, :3], t[:, 3]


class RunningZ(nn.Module):
    def __init__(self, dim, momentum=0.05):
        super().__init__()
        self.momentum = momentum
        self.register_buffer("mean", torch.tensor([300.0, 4.0, 0.0]))
        self.register_buffer("second", torch.tensor([1600.0, 9.0, 6400.0]))

    def forward(self, x):
        if self.training:
            with torch.no_grad():
                dev = x - self.mean
                sq = dev * dev
                self.second.lerp_(sq.mean(0), self.momentum)
                self.mean.lerp_(x.mean(0), self.momentum)
        return (x - self.mean) / (self.second.sqrt() + 1e-3)


class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = RunningZ(3)
        self.body = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, x):
        return self.body(self.norm(x)).squeeze(1)


def main():
    torch.manual_seed(6)
    gate = Gate()
    opt = torch.optim.Adam(gate.parameters(), lr=8e-3)
    with tempfile.TemporaryDirectory() as d:
        path = pathlib.Path(d) / "sluice.csv"
        write_log(path)
        for step, (x, y) in enumerate(read_batches(path), 1):
            out = gate(x)
            ref = weakref.ref(out)
            loss = nn.functional.mse_loss(out, y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            del out
            print(f"step {step:2d} loss {loss.item():.6f} out alive {ref() is not None}")
    gc.collect()
    print(f"weights {sum(p.double().sum().item() for p in gate.parameters()):.7f}")


if __name__ == "__main__":
    main()
