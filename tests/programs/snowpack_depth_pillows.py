# depth of the snowpack from snow-pillow weight, air temperature and sun; linear in a small spline basis
import torch

torch.manual_seed(1)
torch.set_default_dtype(torch.float32)

STATIONS, DAYS, WARMUP, EPOCHS = 14, 90, 5, 32


def season():
    day = torch.linspace(0, 1, DAYS).repeat(STATIONS, 1)
    peak = 0.6 + 0.2 * torch.rand(STATIONS, 1)
    swe = torch.exp(-((day - peak) / 0.28) ** 2) * (1 + 0.3 * torch.rand(STATIONS, 1))
    temp = -6 + 14 * day ** 2 + torch.randn(STATIONS, DAYS)
    sun = 0.4 + 0.5 * day + 0.1 * torch.randn(STATIONS, DAYS)
    density = 0.2 + 0.25 * day + 0.004 * temp
    depth = swe / density
    feats = torch.stack([swe, temp / 10, sun], -1).reshape(-1, 3)
    return feats, depth.reshape(-1, 1)


def hats(x, knots=6):
    lo, hi = x.min(0).values, x.max(0).values
    u = (x - lo) / (hi - lo) * (knots - 1)
    return torch.cat([(1 - (u - k).abs()).clamp(min=0) for k in range(knots)], 1)


x, y = season()
basis = hats(x)
model = torch.nn.Linear(basis.shape[1], 1)
sgd = torch.optim.SGD(model.parameters(), lr=0.35, momentum=0.3)
warm = torch.optim.lr_scheduler.LambdaLR(sgd, lambda n: (n + 1) / WARMUP)
half = len(x) // 2
order = torch.randperm(len(x))
train, check = order[:half], order[half:]

for epoch in range(1, EPOCHS + 1):
    rate = warm.get_last_lr()[0]
    error = model(basis[train]) - y[train]
    loss = (error ** 2).mean()
    sgd.zero_grad()
    loss.backward()
    sgd.step()
    warm.step()
    with torch.no_grad():
        rmse = (model(basis[check]) - y[check]).square().mean().sqrt()
    print(f"epoch {epoch:2d}  rate {rate:.3f}  loss {loss.item():.6g}  check rmse {rmse.item():.5g} m")

print("sum of squared coefficients: %.6g" % sum((p.detach() ** 2).sum().item() for p in model.parameters()))
