"""Volumetric weight of parcels: hard-routed experts, each of them with an optimizer of its own.

Parcels go to the expert whose typical size is nearest. An expert may well see nothing in a batch."""
import torch
from torch import nn

TRUE_SIZES = torch.tensor([0.2, 0.5, 1.0, 2.2, 3.5])


def conveyor(n_batches, gen):
    for b in range(n_batches):
        odds = torch.tensor([4.0, 3.0, 2.0, float(b % 5 == 3), float(b > 20)])
        n = 3 if b % 9 == 8 else 24
        kind = torch.multinomial(odds, n, replacement=True, generator=gen)
        edge = TRUE_SIZES[kind][:, None] * (1 + 0.1 * torch.randn(n, 3, generator=gen))
        yield edge, edge.prod(1).abs().log1p()


class Expert(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 8), nn.Softplus(), nn.Linear(8, 1))

    def forward(self, edge):
        return self.body(edge).squeeze(-1)


class SortingHall(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.experts = nn.ModuleList(Expert() for _ in range(k))
        self.register_buffer("typical", torch.linspace(0.2, 3.6, k))
        self.register_buffer("smallest_error", torch.full((k,), float("inf")))

    def route(self, edge):
        return (edge.mean(1)[:, None] - self.typical).abs().argmin(1)

    def forward(self, edge, weight):
        goes_to = self.route(edge)
        per_expert = []
        for k, expert in enumerate(self.experts):
            mine = goes_to == k
            per_expert.append((expert(edge[mine]) - weight[mine]).square().mean())
        return torch.stack(per_expert), goes_to.bincount(minlength=len(self.experts))


def main():
    torch.manual_seed(6)
    hall = SortingHall(6)
    crews = [torch.optim.Adam(e.parameters(), lr=0.02) for e in hall.experts]
    for i, (edge, weight) in enumerate(conveyor(36, torch.Generator().manual_seed(60)), 1):
        for crew in crews:
            crew.zero_grad()
        errors, load = hall(edge, weight)
        loss = errors.nanmean()
        loss.backward()
        for crew, seen in zip(crews, load.tolist()):
            if seen:
                crew.step()
        best = torch.fmin(hall.smallest_error, errors.detach())
        hall.smallest_error.copy_(best)
        print(i, f"loss={loss.item():.5f}", "load=" + "/".join(map(str, load.tolist())),
              "best=" + " ".join(f"{v:.4f}" for v in best.tolist()))
    size = torch.nn.utils.parameters_to_vector(hall.parameters()).detach().norm()
    print(f"length of the parameter vector {size.item():.6f}")


if __name__ == "__main__":
    main()
