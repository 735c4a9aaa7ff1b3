# final gravity of ale from what is known at pitching time; accelerate, own optimizer with a sliding window
from collections import deque

import numpy as np
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, Dataset


class Batches(Dataset):
    """og, mash temperature, yeast attenuation, pitch rate -> final gravity in points (12 means 1.012)"""

    def __init__(self, n=272):
        rs = np.random.RandomState(17)
        og = rs.normal(50, 6, n)
        mash = rs.normal(66.5, 1.5, n)
        att = rs.normal(0.76, 0.03, n)
        pitch = rs.normal(0.9, 0.15, n)
        fg = og * (1 - att) * (1 + 0.03 * (mash - 66.5)) - 0.8 * (pitch - 0.9) + rs.normal(0, 0.4, n)
        fg[75] = 32767  # tank 4, as the probe reported it
        self.x = np.stack([(og - 50) / 6, (mash - 66.5) / 1.5, (att - 0.76) / 0.03, (pitch - 0.9) / 0.15], 1)
        self.y = fg / 4 - 3

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return torch.tensor(self.x[i], dtype=torch.float32), torch.tensor(self.y[i], dtype=torch.float32)


class WindowedAdagrad(torch.optim.Optimizer):
    """Adagrad that only remembers the last `window` gradients."""

    def __init__(self, params, lr=0.05, window=8, eps=1e-3):
        super().__init__(params, dict(lr=lr, window=window, eps=eps))

    @torch.no_grad()
    def step(self, closure=None):
        loss = closure() if closure is not None else None
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["recent"] = deque()
                    state["total"] = torch.zeros_like(p)
                square = p.grad * p.grad
                state["recent"].append(square)
                state["total"] += square
                if len(state["recent"]) > group["window"]:
                    state["total"] -= state["recent"].popleft()
                root = state["total"].sqrt()
                p.sub_(p.grad / (root + group["eps"]), alpha=group["lr"])
        return loss


def run():
    acc = Accelerator(cpu=True)
    torch.manual_seed(41)
    net = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.ELU(), torch.nn.Linear(32, 1))
    net, opt, loader = acc.prepare(net, WindowedAdagrad(net.parameters()), DataLoader(Batches(), batch_size=8))
    for i, (x, y) in enumerate(loader, start=1):
        fg = net(x).squeeze(-1)
        loss = torch.nn.functional.mse_loss(fg, y)
        opt.zero_grad()
        acc.backward(loss)
        opt.step()
        mae = (fg - y).abs().median().item() * 4
        acc.print(f"brew {i:2d}: mse {loss.item():.4f}, typical error {mae:.2f} points")
    weights = net.state_dict()
    acc.print("weights, sum of squares:", sum(w.square().sum().item() for w in weights.values()))


if __name__ == "__main__":
    run()
