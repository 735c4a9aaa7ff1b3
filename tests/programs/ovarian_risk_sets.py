"""Stratified Cox model with a small network; ties by Breslow, risk sets by a mask."""
import torch
import torch.nn as nn

torch.manual_seed(23)


def cohort(n=180, centres=9):
    x = torch.randn(n, 8)
    risk = 0.8 * x[:, 0] - 0.6 * x[:, 1] * x[:, 2]
    time = (torch.distributions.Exponential(torch.exp(risk)).sample() * 24).clamp(0.1, 60).round(decimals=1)
    censor = torch.rand(n) * 50
    event = (time <= censor)
    centre = torch.randint(0, centres, (n,))
    event[centre == 4] = False          # nobody relapsed there during follow-up
    return x, torch.minimum(time, censor), event, centre


class RiskNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 1, bias=False)
        self.hidden = nn.Sequential(nn.Linear(8, 16), nn.Softsign(), nn.Linear(16, 1, bias=False))

    def forward(self, x):
        return (self.linear(x) + self.hidden(x)).squeeze(1)


def partial_likelihood(score, time, event, centre):
    # row i, column j: is j at risk when i fails, in the same centre
    at_risk = (time[None, :] >= time[:, None]) & (centre[None, :] == centre[:, None])
    table = score[None, :].expand(len(score), -1).masked_fill(~at_risk, -torch.inf)
    return score[event] - torch.logsumexp(table[event], dim=1)


x, time, event, centre = cohort()
net = RiskNet()
opt = torch.optim.RMSprop(net.parameters(), lr=3e-3, momentum=0.5, centered=True)
best, patience = float("inf"), 0
held = torch.arange(len(x)) % 5 == 0

skipped = 0
for epoch in range(5):
    for c in range(9):
        rows = (~held) & (centre % 9 == c)
        if not event[rows].any():
            skipped += 1
            continue
        ll = partial_likelihood(net(x[rows]), time[rows], event[rows], centre[rows])
        loss = -ll.sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"epoch {epoch} centre {c} -logPL {loss.item():.4f} ({len(ll)} events)")
    with torch.no_grad():
        val = -partial_likelihood(net(x[held]), time[held], event[held], centre[held]).mean().item()
    best = min(best, val)
    print(f"held out {val:.4f} best {best:.4f}")

print("skipped", skipped)
print(sum(p.detach().pow(2).sum().item() for p in net.parameters()))
