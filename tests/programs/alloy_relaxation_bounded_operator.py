import argparse
import torch
import torch.nn as nn

parser = argparse.ArgumentParser()
parser.add_argument("--heats", type=int, default=36)
parser.add_argument("--elements", type=int, default=8)
parser.add_argument("--bound", type=float, default=0.9)
args, _ = parser.parse_known_args()


class SiteRelaxation(nn.Module):
    """Occupations of the lattice sites are relaxed a few times with one coupling matrix."""

    def __init__(self, elements, sites=16, rounds=3, bound=0.9):
        super().__init__()
        self.load = nn.Linear(elements, sites)
        self.coupling = nn.Parameter(0.12 * torch.randn(sites, sites))
        self.hardness = nn.Linear(sites, 1)
        self.rounds, self.bound = rounds, bound

    @torch.no_grad()
    def keep_bounded(self):
        size = torch.linalg.matrix_norm(self.coupling, ord=2)
        if size > self.bound:
            self.coupling.mul_(self.bound / size)

    def forward(self, composition):
        drive = self.load(composition)
        occupation = torch.tanh(drive)
        for _ in range(self.rounds):
            occupation = torch.tanh(drive + occupation @ self.coupling)
            self.keep_bounded()
        return self.hardness(occupation).squeeze(-1)


def foundry(n, elements, generator):
    raw = torch.rand(n, elements, generator=generator) ** 2
    frac = raw / raw.sum(1, keepdim=True)
    vickers = 4 * frac[:, 0] + 9 * frac[:, 1] * frac[:, 2] - 3 * (frac[:, 3] - 0.2).abs() + 2 * frac[:, 5] ** 2
    return frac * elements - 1.0, vickers - 0.3 + 0.02 * torch.randn(n, generator=generator)


def main():
    torch.manual_seed(1665)
    generator = torch.Generator().manual_seed(26)
    model = SiteRelaxation(args.elements, bound=args.bound)
    optimizer = torch.optim.NAdam(model.parameters(), lr=0.012)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.heats)
    for heat in range(1, args.heats + 1):
        frac, vickers = foundry(48, args.elements, generator)
        optimizer.zero_grad()
        loss = nn.functional.huber_loss(model(frac), vickers)
        loss.backward()
        optimizer.step()
        scheduler.step()
        print(f"heat {heat:3d}  loss {loss.item():.6f}  lr {scheduler.get_last_lr()[0]:.5f}", flush=True)
    print("sum of squares", round(sum(p.pow(2).sum().item() for p in model.parameters()), 5))


main()
