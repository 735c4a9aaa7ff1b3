# prices at the fish market as a sum of rank-one terms: stall x species x weekday
# week after week the auction sheets come in, each week gives one step. raw tensors, no nn.Module.
import numpy as np
import torch

torch.manual_seed(0)
STALLS, SPECIES, DAYS, RANK, WEEKS = 14, 9, 6, 4, 40
SHEETS = 420
LR = 0.05


def auction_history(seed=6):
    """Truth, and which stalls are open in which week (owners go on holiday)."""
    rng = np.random.default_rng(seed)
    a = rng.gamma(4.0, 0.25, (STALLS, RANK))
    b = rng.gamma(4.0, 0.25, (SPECIES, RANK))
    c = 0.8 + 0.4 * rng.random((DAYS, RANK))
    price = np.einsum("ir,jr,kr->ijk", a, b, c)
    open_ = np.ones((WEEKS, STALLS), bool)
    open_[18:20, 11] = False
    open_[29:31, 3] = False
    return price, open_


def sheets_of_week(week, price, open_, rng):
    stalls = np.flatnonzero(open_[week])
    i = rng.choice(stalls, SHEETS)
    j = rng.integers(0, SPECIES, SHEETS)
    k = rng.integers(0, DAYS, SHEETS)
    y = price[i, j, k] * np.exp(0.05 * rng.standard_normal(SHEETS))
    as_long = lambda v: torch.as_tensor(v, dtype=torch.long)
    return as_long(i), as_long(j), as_long(k), torch.as_tensor(y, dtype=torch.float32)


def predict(factors, i, j, k):
    A, B, C = factors
    return (A[i] * B[j] * C[k]).sum(1)


def objective(factors, i, j, k, y):
    miss = predict(factors, i, j, k) - y
    return torch.nn.functional.huber_loss(miss, torch.zeros_like(miss), delta=2.0)


def row_step(factors, lr):
    # every row moves by the same length, whatever its number of sheets: busy stalls shall not run ahead
    with torch.no_grad():
        for f in factors:
            g = f.grad
            length = g.norm(dim=1, keepdim=True)
            f -= lr * g / length
            f.clamp_(min=0.0)
            f.grad = None


def main():
    price, open_ = auction_history()
    rng = np.random.default_rng(12)
    factors = [(0.5 + 0.5 * torch.rand(n, RANK)).requires_grad_(True) for n in (STALLS, SPECIES, DAYS)]
    for week in range(WEEKS):
        batch = sheets_of_week(week, price, open_, rng)
        loss = objective(factors, *batch)
        loss.backward()
        row_step(factors, LR / (1 + week / 20))
        print("week", week + 1, "huber", "%.7f" % loss.item(), "stalls", int(open_[week].sum()), flush=True)
    print("%.6f" % sum(f.detach().abs().sum().item() for f in factors), flush=True)


main()
