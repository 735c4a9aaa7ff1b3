"""Pairing leaders and followers of a tango evening: learn a cost so that the entropic transport
plan agrees with who danced with whom.

Evenings differ in size, so they are padded.  An absent person has log-mass -inf; the Sinkhorn
iteration is done with logarithms and carries these -inf through to plan entries that are exactly 0."""
import torch
from torch import nn

EPS = 0.3
ROUNDS = 25
MAX = 9


def evening(gen, taste):
    n = int(torch.randint(3, MAX + 1, (1,), generator=gen))
    lead = torch.randn(n, 6, generator=gen)
    perm = torch.randperm(n, generator=gen)
    follow = torch.empty(n, 6)
    follow[perm] = lead @ taste + 0.35 * torch.randn(n, 6, generator=gen)
    return lead, follow, perm


def pad_batch(evenings):
    b = len(evenings)
    lead, follow = torch.zeros(b, MAX, 6), torch.zeros(b, MAX, 6)
    present = torch.zeros(b, MAX, dtype=torch.bool)
    target = torch.full((b, MAX), -1)
    for i, (l, f, perm) in enumerate(evenings):
        n = len(l)
        lead[i, :n], follow[i, :n], target[i, :n] = l, f, perm
        present[i, :n] = True
    return lead, follow, present, target


def log_sinkhorn(cost, log_a, log_b):
    """Log of the transport plan; rows and columns with log-mass -inf stay out."""
    kernel = -cost / EPS
    f = torch.zeros_like(log_a)
    g = torch.zeros_like(log_b)
    for _ in range(ROUNDS):
        f = log_a - torch.logsumexp(kernel + g.unsqueeze(-2), dim=-1)
        g = log_b - torch.logsumexp(kernel + f.unsqueeze(-1), dim=-2)
    return kernel + f.unsqueeze(-1) + g.unsqueeze(-2)


class PairCost(nn.Module):
    def __init__(self, dim=12):
        super().__init__()
        self.lead = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, dim))
        self.follow = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, dim))

    def forward(self, l, f):
        a, b = self.lead(l), self.follow(f)
        return (a.unsqueeze(2) - b.unsqueeze(1)).square().sum(-1) / a.shape[-1]


def main():
    torch.manual_seed(44)
    gen = torch.Generator().manual_seed(45)
    taste = torch.linalg.qr(torch.randn(6, 6, generator=gen))[0]
    model = PairCost()
    opt = torch.optim.NAdam(model.parameters(), lr=6e-3)
    for step in range(1, 51):
        lead, follow, present, target = pad_batch([evening(gen, taste) for _ in range(12)])
        mass = present.float() / present.sum(1, keepdim=True)
        log_mass = torch.log(mass)                       # -inf for the absent, on purpose
        log_plan = log_sinkhorn(model(lead, follow), log_mass, log_mass)
        conditional = log_plan - log_mass.masked_fill(~present, 0.0).unsqueeze(-1)
        picked = conditional.gather(-1, target.clamp(min=0).unsqueeze(-1)).squeeze(-1)
        loss = -picked[present].mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        with torch.no_grad():
            plan = log_plan.exp()
            right = (plan.argmax(-1) == target)[present].float().mean().item()
            lowest = log_plan.min().item()
        print(f"step {step:2d} people {int(present.sum())} loss {loss.item():.6f} right {right:.4f} "
              f"lowest log-plan {lowest:.2f}", flush=True)
    print(f"{sum(p.detach().abs().sum().item() for p in model.parameters()):.6f}", flush=True)


if __name__ == "__main__":
    main()
