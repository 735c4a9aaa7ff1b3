"""Cumulative-link regression of tasting grades.  The outer thresholds are open: -inf and +inf."""
import torch
import torch.nn.functional as F

GRADES = 6


def make_cellar(n, g):
    chem = torch.randn(n, 5, generator=g)
    quality = chem @ torch.tensor([0.9, -0.4, 0.3, 0.0, 0.7]) + 0.4 * torch.randn(n, generator=g)
    grade = torch.bucketize(quality, torch.tensor([-2.0, -0.9, 0.0, 0.9, 2.0]))
    return chem, grade


def init(g):
    return {
        "w1": (0.4 * torch.randn(5, 12, generator=g)).requires_grad_(),
        "b1": torch.zeros(12, requires_grad=True),
        "w2": (0.3 * torch.randn(12, generator=g)).requires_grad_(),
        "first": torch.tensor(-1.5, requires_grad=True),
        "gaps": torch.zeros(GRADES - 2, requires_grad=True),
    }


def thresholds(p):
    inner = p["first"] + torch.cat([torch.zeros(1), torch.cumsum(F.softplus(p["gaps"]), 0)])
    edge = torch.full((1,), float("inf"))
    return torch.cat([-edge, inner, edge])


def summed_nll(p, chem, grade):
    score = torch.tanh(chem @ p["w1"] + p["b1"]) @ p["w2"]
    cuts = thresholds(p)
    upper = torch.sigmoid(cuts[grade + 1] - score)
    lower = torch.sigmoid(cuts[grade] - score)
    return -(upper - lower).log().sum()


def lesson(epoch, chem, grade):
    """Middling wines first, then the good and the bad, the extremes last."""
    reach = [0.6, 1.6, 2.6][min(epoch // 6, 2)]
    keep = (grade - 2.5).abs() < reach
    return chem[keep], grade[keep]


g = torch.Generator().manual_seed(3)
chem, grade = make_cellar(160, g)
params = init(g)
opt = torch.optim.RMSprop(list(params.values()), lr=4e-3)
cosine = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=18)
for epoch in range(18):
    x, y = lesson(epoch, chem, grade)
    opt.zero_grad()
    loss = summed_nll(params, x, y)
    loss.backward()
    opt.step()
    cosine.step()
    print(epoch, len(y), repr(loss.item()), "widest", thresholds(params).diff().max().item())
print(sum(v.detach().sum() for v in params.values()).item())
