"""Cox model for the revision of hip implants, Efron's ties left aside, fitted in mini-batches of registry rows."""
import torch
from torch import nn

N, P, BATCH, EPOCHS = 720, 6, 24, 2


def registry(seed=2024):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(N, P, generator=g)
    beta = torch.tensor([0.8, -0.5, 0.3, 0.0, 0.4, -0.2])
    hazard = 0.01 * torch.exp(x @ beta)
    event_time = torch.distributions.Exponential(hazard).icdf(torch.rand(N, generator=g) * 0.999)
    closing = 4 + 16 * torch.rand(N, generator=g)
    event = event_time <= closing
    entry = torch.zeros(N)
    late = torch.rand(N, generator=g) < 0.25           # registered at a later visit: left truncation
    entry[late] = 3 * torch.rand(int(late.sum()), generator=g)
    time = torch.maximum(torch.minimum(event_time, closing), entry + 0.01)
    # revisions that were never dated carry an infinite time: they are at risk throughout, and no event
    undated = torch.rand(N, generator=g) < 0.02
    time[undated] = float("inf")
    event[undated] = False
    return x, entry, time, event


class Risk(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(P, 1, bias=False)
        self.bend = nn.Sequential(nn.Linear(P, 16), nn.ELU(), nn.Linear(16, 1, bias=False))

    def forward(self, x):
        return (self.linear(x) + self.bend(x)).squeeze(-1)


def partial_likelihood(risk, entry, time, event):
    """Minus the mean log of the share of each event in its risk set; rows without an event are not used."""
    t = time[event]
    at_risk = (time[None] >= t[:, None]) & (entry[None] < t[:, None])
    spread = torch.where(at_risk, risk[None], torch.tensor(-torch.inf))
    return (torch.logsumexp(spread, -1) - risk[event]).mean()


@torch.no_grad()
def concordance(risk, time, event):
    """nan where no pair can be compared, as is usual in a batch of 24"""
    pairs = event[:, None] & (time[:, None] < time[None])
    pairs &= event[None]
    good = (risk[:, None] > risk[None]) & pairs
    return (good.sum() / pairs.sum()).item()


def main():
    torch.manual_seed(12)
    x, entry, time, event = registry()
    model = Risk()
    opt = torch.optim.RMSprop(model.parameters(), lr=5e-3)
    shuffle = torch.Generator().manual_seed(13)
    print(f"rows {N} events {int(event.sum())} longest {time.max().item()}", flush=True)
    k = 0
    for epoch in range(EPOCHS):
        order = torch.randperm(N, generator=shuffle)
        for part in order.split(BATCH):
            k += 1
            ev = event[part]
            if epoch == 1 and k % 10 == 0:
                part, ev = part[~ev], ev[~ev]              # an audit of the censored rows alone
            risk = model(x[part])
            if not ev.any():
                print(f"batch {k} loss nan concordance nan (no event, left out)", flush=True)
                continue
            loss = partial_likelihood(risk, entry[part], time[part], ev)
            penalty = 1e-3 * sum(p.abs().sum() for p in model.linear.parameters())
            opt.zero_grad()
            (loss + penalty).backward()
            opt.step()
            print(f"batch {k} loss {loss.item():.7f} events {int(ev.sum())} "
                  f"concordance {concordance(risk, time[part], ev):.4f}", flush=True)
    print(f"beta {sum(p.detach().abs().sum().item() for p in model.parameters()):.6f}", flush=True)


if __name__ == "__main__":
    main()
