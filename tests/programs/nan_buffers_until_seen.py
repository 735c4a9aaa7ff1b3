import torch, torch.nn as nn

torch.manual_seed(0)


class Head(nn.Module):
    def __init__(s):
        super().__init__()
        s.l = nn.Linear(6, 1)
        s.register_buffer("mean", torch.full((6,), torch.nan))
        s.register_buffer("best", torch.tensor(torch.inf))
        s.seen = False

    def forward(s, x):
        if s.training:
            m = x.mean(0).detach()
            s.mean = m if not s.seen else 0.9 * s.mean + 0.1 * m
            s.seen = True
        return s.l(x - s.mean)


h = Head()
opt = torch.optim.Adam(h.parameters(), 1e-2)
best = float("inf")
hist = torch.full((15,), float("nan"))
for i in range(15):
    x = torch.randn(8, 6) + 3
    l = (h(x) - x[:, :1]).pow(2).mean()
    opt.zero_grad()
    l.backward()
    opt.step()
    hist[i] = l.detach()
    best = min(best, l.item())
print(best, hist.nanmean().item(), h.best.item())
