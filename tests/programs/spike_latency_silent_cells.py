import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

T, N_IN, N_CELLS = 30, 24, 10
NEVER = float("inf")


class Spike(torch.autograd.Function):
    @staticmethod
    def forward(ctx, v):
        ctx.save_for_backward(v)
        return (v > 0).to(v.dtype)

    @staticmethod
    def backward(ctx, g):
        (v,) = ctx.saved_tensors
        return g / (1.0 + 4.0 * v.abs()) ** 2


def first_spike(w, drive):
    """Leaky integrate-and-fire; returns the latency of the first spike, NEVER for silent cells."""
    v = drive.new_zeros(drive.shape[0], N_CELLS)
    quiet = torch.ones_like(v)
    latency = torch.zeros_like(v)
    for k in range(T):
        v = 0.85 * v + drive[:, k] @ w
        s = Spike.apply(v - 1.0)
        quiet = quiet * (1.0 - s)
        latency = latency + quiet
        v = v - s
    return torch.where(quiet > 0.5, NEVER, latency)


def record(rng, n, silent):
    x = (rng.random((n, T, N_IN)) < 0.12).astype(np.float32)
    rate = x.mean(axis=(1, 2))
    y = np.tile(np.arange(N_CELLS, dtype=np.float32) + 3.0, (n, 1)) - 40.0 * (rate[:, None] - 0.12)
    y = np.round(np.clip(y, 1, T - 1)).astype(np.float32)
    y[rng.random((n, N_CELLS)) < 0.2] = np.inf
    if silent:
        x *= 0.0
        y[:] = np.inf
    return torch.from_numpy(x), torch.from_numpy(y)


def loss_of(w, x, y, tolerance=1.5):
    lat = first_spike(w, x)
    both = torch.isfinite(lat) & torch.isfinite(y)
    gap = torch.where(both, lat - y, 0.0).abs()
    miss = torch.isfinite(y) & ~torch.isfinite(lat)
    per_cell = torch.relu(gap - tolerance)
    return per_cell.sum() / both.sum().clamp(min=1), int(both.sum()), int(miss.sum()), lat


def main():
    rng = np.random.default_rng(31)
    torch.manual_seed(31)
    awake = DataLoader(TensorDataset(*record(rng, 24 * 8, False)), batch_size=8)
    asleep = DataLoader(TensorDataset(*record(rng, 8 * 8, True)), batch_size=8)
    feed = iter(awake)
    rest = iter(asleep)

    w = (0.25 * torch.rand(N_IN, N_CELLS)).requires_grad_()
    m = torch.zeros_like(w)
    for trial in range(1, 31):
        x, y = next(rest) if trial % 4 == 0 else next(feed)
        loss, n_pairs, n_missed, lat = loss_of(w, x, y)
        (g,) = torch.autograd.grad(loss, w)
        with torch.no_grad():
            m.mul_(0.8).add_(g)
            w -= 0.01 * m
            w.clamp_(0.0, 0.8)
            if trial in (10, 20):
                dead = ~torch.isfinite(lat).any(0)
                slow = int(lat.nan_to_num(posinf=T).mean(0).argmax())
                w[:, slow] = 0.25 * torch.rand(N_IN)
                m[:, slow] = 0.0
                print("   redrawn cell", slow, "silent cells", int(dead.sum()))
        print(f"trial {trial:2d} loss {loss.item():.5f} pairs {n_pairs:2d} missed {n_missed:2d} "
              f"latest {lat.max().item():g} |g| {g.norm().item():.4f}")
    print("total synaptic weight", f"{w.abs().sum().item():.5f}")


main()
