"""Adjustment of a small precise levelling network, iteratively reweighted.
Unknown: benchmark heights (metres).  Observed: height differences along lines."""
import math
import torch

torch.set_default_dtype(torch.float64)
torch.manual_seed(1871)

N_BM = 14
N_LINES = 60

true_h = 200.0 + 15.0 * torch.rand(N_BM)
frm = torch.randint(0, N_BM, (N_LINES,))
to = (frm + torch.randint(1, N_BM, (N_LINES,))) % N_BM
length_km = 0.5 + 4.0 * torch.rand(N_LINES)
sigma = 0.0009 * length_km.sqrt()
dh = true_h[to] - true_h[frm] + sigma * torch.randn(N_LINES)
dh[torch.tensor([7, 31])] += 0.08                      # staff read wrongly
sigma[torch.tensor([3, 18, 44])] = math.inf            # lines abandoned in the field book
dh[torch.tensor([3, 18, 44])] = -math.inf

rows = torch.arange(N_LINES).repeat(2)
cols = torch.cat([to, frm])
vals = torch.cat([torch.ones(N_LINES), -torch.ones(N_LINES)])
design = torch.sparse_coo_tensor(torch.stack([rows, cols]), vals, (N_LINES, N_BM), check_invariants=True).coalesce()

p0 = sigma.pow(-2)                                     # weight of an abandoned line is 1/inf
usable = torch.isfinite(dh)

heights = torch.nn.Parameter(torch.full((N_BM,), 205.0))
datum = true_h[0].item()


def residuals():
    predicted = torch.sparse.mm(design, heights[:, None])[:, 0]
    return torch.where(usable, predicted - dh, torch.zeros_like(dh))


def objective(weights):
    v = residuals()
    return 0.5 * (weights * v * v).sum() / 1e4 + 50.0 * (heights[0] - datum) ** 2


count = 0
smallest = math.inf
for sweep in range(7):
    with torch.no_grad():
        if sweep < 2:
            weights = p0.clone()
        else:
            standardised = residuals().abs() / sigma   # zero for the abandoned ones
            weights = p0 * torch.where(standardised > 2.5, 2.5 / standardised, 1.0)
    engine = torch.optim.LBFGS([heights], lr=1.0, max_iter=4, history_size=6, line_search_fn="strong_wolfe")
    for _ in range(4):
        def closure():
            engine.zero_grad()
            value = objective(weights)
            value.backward()
            return value

        value = engine.step(closure)
        count += 1
        smallest = min(smallest, value.item())
        used = int((weights > 0.5 * p0).sum())
        print(f"sweep {sweep} step {count:2d} objective {value.item():.9e} lines in use {used}")

print(f"smallest objective {smallest:.6e}")
print(f"largest height error in mm {(heights - true_h).abs().max().item() * 1000:.4f}")
print("sum of absolute heights", round(heights.abs().sum().item(), 6))
