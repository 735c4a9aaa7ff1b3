"""Pitch controller for a small windmill: regress the best blade pitch from wind, rotor speed and load.

Staged training as in the old recipe: each stage adds 0.06 to the momentum. (The old recipe had two stages.)
"""
import torch
from torch import nn

CONFIG = {
    "seed": 1887,
    "stages": 5,
    "steps_per_stage": 16,
    "lr": 0.03,
    "momentum": 0.90,
    "momentum_increment": 0.06,
    "batch": 48,
}


class PitchNet(nn.Module):
    def __init__(self, hidden=24):
        super().__init__()
        self.features = nn.Linear(3, hidden)
        self.pitch = nn.Linear(hidden, 1)

    def forward(self, x):
        return self.pitch(torch.relu(self.features(x))).squeeze(-1)


class WindTunnel:
    def __init__(self, seed):
        self.gen = torch.Generator().manual_seed(seed)

    def __iter__(self):
        return self

    def __next__(self):
        x = torch.randn(CONFIG["batch"], 3, generator=self.gen)
        best = 4 * torch.sigmoid(2 * x[:, 0]) - 1.5 * x[:, 1].abs() + 0.3 * x[:, 2]
        return x, best + 0.2 * torch.randn(len(x), generator=self.gen)


class Stage:
    """Context manager that sets the hyperparameters for one stage and tells about it."""

    def __init__(self, opt, index):
        self.opt, self.index = opt, index

    def __enter__(self):
        m = CONFIG["momentum"] + CONFIG["momentum_increment"] * self.index
        for group in self.opt.param_groups:
            group["momentum"] = m
        print(f"== stage {self.index + 1}")
        return self

    def __exit__(self, *exc):
        return False


def step(model, opt, x, y):
    opt.zero_grad()
    loss = (model(x) - y).square().mean()
    loss.backward()
    opt.step()
    return loss.item()


def main():
    torch.manual_seed(CONFIG["seed"])
    model = PitchNet()
    opt = torch.optim.SGD(model.parameters(), lr=CONFIG["lr"], momentum=CONFIG["momentum"])
    tunnel = WindTunnel(CONFIG["seed"])
    n = 0
    for index in range(CONFIG["stages"]):
        with Stage(opt, index):
            for _ in range(CONFIG["steps_per_stage"]):
                n += 1
                loss = step(model, opt, *next(tunnel))
                print(f"step {n:3d}  mse {loss:.6f}")
    print("sum of weights", f"{sum(p.sum().item() for p in model.parameters()):.5f}")


main()
