"""One trunk, three heads for a goat clinic: gait score, body weight, temperature.

Not everything is measured at every visit; the sheet has empty cells. Each head has its own
learned log sigma. In the middle of the season the clinic buys other scales, and the head for
the weight starts again from fresh values."""
import io

import numpy as np
import torch
from torch import nn

torch.manual_seed(90)
rs = np.random.RandomState(90)


def season_sheet(rows):
    buf = io.StringIO()
    for r in range(rows):
        x = rs.randn(5)
        gait = int(np.clip(round(1.5 + x[0] - 0.5 * x[1]), 0, 3))
        weight = 0.8 * x[2] + 0.1 * rs.randn()
        temp = 0.05 * x[3] + 0.01 * rs.randn()
        cells = [f"{v:.4f}" for v in x]
        day = r // 10
        cells.append("" if rs.rand() < 0.3 else str(gait))
        cells.append("" if day % 8 == 5 or rs.rand() < 0.3 else f"{weight:.4f}")
        cells.append("" if day in (3, 4) or rs.rand() < 0.5 else f"{temp:.4f}")
        buf.write(",".join(cells) + "\n")
    buf.seek(0)
    return torch.from_numpy(np.genfromtxt(buf, delimiter=",", dtype=np.float32))


class Clinic(nn.Module):
    names = ("gait", "weight", "temp")

    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(5, 24), nn.LayerNorm(24), nn.GELU())
        self.heads = nn.ModuleDict({"gait": nn.Linear(24, 4), "weight": nn.Linear(24, 1), "temp": nn.Linear(24, 1)})
        self.log_sigma = nn.ParameterDict({n: nn.Parameter(torch.zeros(())) for n in self.names})

    def head_losses(self, sheet):
        h = self.trunk(sheet[:, :5])
        out = {}
        for c, name in enumerate(self.names):
            y = sheet[:, 5 + c]
            seen = ~torch.isnan(y)
            p = self.heads[name](h[seen])
            s = self.log_sigma[name]
            if name == "gait":
                each = nn.functional.cross_entropy(p, y[seen].long(), reduction="none") * torch.exp(-2 * s) + s
            else:
                each = 0.5 * (p[:, 0] - y[seen]) ** 2 * torch.exp(-2 * s) + s
            out[name] = (each.sum() / max(len(each), 1), each.mean())
        return out


def optimisers(clinic):
    per_head = {n: torch.optim.Adam([*clinic.heads[n].parameters(), clinic.log_sigma[n]], lr=0.03)
                for n in clinic.names}
    per_head["trunk"] = torch.optim.SGD(clinic.trunk.parameters(), lr=0.05)
    return per_head


def main():
    sheet = season_sheet(360)
    clinic = Clinic()
    opts = optimisers(clinic)
    for day, rows in enumerate(sheet.split(10)):
        if day == 18:
            clinic.heads["weight"].reset_parameters()
            with torch.no_grad():
                clinic.log_sigma["weight"].fill_(0.0)
            opts["weight"].state.clear()
            sheet[180:, 6] *= 2.2
        for o in opts.values():
            o.zero_grad()
        parts = clinic.head_losses(rows)
        total = sum(p[0] for p in parts.values())
        total.backward()
        for o in opts.values():
            o.step()
        print(f"day {day:2d} total {total.item():8.4f}", *(f"{n} {p[1].item():.4f}" for n, p in parts.items()))
    print("sum of squared weights", f"{sum(p.detach().pow(2).sum().item() for p in clinic.parameters()):.4f}")


if __name__ == "__main__":
    main()
