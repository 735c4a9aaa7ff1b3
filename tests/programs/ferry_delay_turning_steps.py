"""Delay quantiles (10, 50, 90 %) of an island ferry from weather and load, linear, whole season per step.

The step is shortened where the descent turns: full length if the gradient keeps its direction,
none if it is reversed.
"""
import math

import numpy as np
import pandas as pd
import torch


class TurningDescent(torch.optim.Optimizer):
    def __init__(self, params, lr=0.1, shrink=0.95):
        super().__init__(params, dict(lr=lr, shrink=shrink))

    @torch.no_grad()
    def step(self, closure=None):
        loss = closure() if closure is not None else None
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                here = p.grad.flatten()
                share = torch.ones(())
                if "before" in state:
                    before = state["before"]
                    along = (here * before).sum() / (here.square().sum().sqrt() * before.square().sum().sqrt())
                    turn = torch.acos(along)
                    share = 1.0 - turn / math.pi
                state["before"] = here.clone()
                p.sub_(group["lr"] * share * p.grad)
            group["lr"] *= group["shrink"]
        return loss


def season(n=60, seed=7):
    rng = np.random.default_rng(seed)
    df = pd.DataFrame({
        "wind": rng.gamma(3.0, 2.0, n),
        "cars": rng.integers(5, 60, n),
        "swell": rng.gamma(2.0, 0.5, n),
        "night": (rng.random(n) < 0.3).astype(int),
    })
    noise = rng.gumbel(0.0, 1.0 + 0.2 * df["wind"], n)
    df["delay"] = 1.0 + 0.5 * df["wind"] + 0.05 * df["cars"] + 2.0 * df["swell"] + noise
    return df


def pinball(pred, y, q):
    miss = y[:, None] - pred
    return torch.maximum(q * miss, (q - 1) * miss).mean()


def train():
    torch.manual_seed(1)
    df = season()
    cols = ["wind", "cars", "swell", "night"]
    x = (df[cols] - df[cols].mean()) / df[cols].std()
    x = torch.tensor(np.c_[x.values, np.ones(len(df))], dtype=torch.float32)
    y = torch.tensor(df["delay"].values, dtype=torch.float32)
    q = torch.tensor([0.1, 0.5, 0.9])
    coef = torch.nn.Parameter(torch.zeros(5, 3))
    opt = TurningDescent([coef], lr=3.0, shrink=0.9)
    for step in range(1, 41):
        opt.zero_grad()
        loss = pinball(x @ coef, y, q)
        loss.backward()
        opt.step()
        print(f"[{step:02d}] pinball={loss.item():.5f} median intercept={coef[4, 1].item():.4f}")
    print("coefficients, absolute sum:", coef.detach().abs().sum().item())


if __name__ == "__main__":
    train()
