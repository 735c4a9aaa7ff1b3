"""Pretraining of a small forecaster on many geyser basins: patches, instance normalisation of hidden patches, quantile heads.
Written with functional parameters: params is a dict, the gradient comes from torch.func."""
import math

import torch
from torch.func import functional_call, grad_and_value

QUANTILES = torch.tensor([0.1, 0.5, 0.9])
CONTEXT, PATCH, HORIZON, BATCH = 48, 8, 8, 12


class HiddenNorm(torch.nn.Module):
    """Removes level and spread over the patches of a series, hands both back."""

    def forward(self, h):
        level = h.mean(dim=1, keepdim=True)
        spread = ((h - level) ** 2).mean(dim=1, keepdim=True).sqrt()
        return (h - level) / (spread + 1e-5), level, spread


class Forecaster(torch.nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.embed = torch.nn.Linear(PATCH, width, bias=False)
        self.norm = HiddenNorm()
        self.pos = torch.nn.Parameter(0.02 * torch.randn(CONTEXT // PATCH, width))
        self.mix = torch.nn.Linear(CONTEXT // PATCH, CONTEXT // PATCH)
        self.ff = torch.nn.Sequential(torch.nn.Linear(width, 2 * width), torch.nn.GELU(), torch.nn.Linear(2 * width, width))
        self.heads = torch.nn.Linear(width, HORIZON * len(QUANTILES))

    def forward(self, x):
        h = self.embed(x.unfold(1, PATCH, PATCH))
        z, level, spread = self.norm(h)
        z = z + self.pos
        z = z + self.mix(z.transpose(1, 2)).transpose(1, 2)
        z = z + self.ff(z)
        out = z.mean(1) * (1 + spread.squeeze(1)) + level.squeeze(1)
        return self.heads(out).view(len(x), HORIZON, len(QUANTILES))


def pinball(pred, y):
    e = y[..., None] - pred
    return torch.maximum(QUANTILES * e, (QUANTILES - 1) * e).mean()


class Archive:
    """Temperature of the outflow, as differences of neighbouring readings; a logger that froze repeats its last reading."""

    def __init__(self, seed):
        self.gen = torch.Generator().manual_seed(seed)
        self.basins = []
        for b in range(30):
            n = 900
            t = torch.arange(n).float()
            period = 20 + 40 * float(torch.rand(1, generator=self.gen))
            temp = 60 + 15 * torch.relu(torch.sin(2 * math.pi * t / period)) ** 2
            temp = temp + 0.8 * torch.randn(n, generator=self.gen)
            if b == 23:
                temp[400:520] = temp[400]
            self.basins.append(temp.diff())

    def batch(self):
        xs, ys = [], []
        for b in torch.randint(0, len(self.basins), (BATCH,), generator=self.gen).tolist():
            s = int(torch.randint(0, 898 - CONTEXT - HORIZON, (1,), generator=self.gen))
            piece = self.basins[b][s:s + CONTEXT + HORIZON]
            xs.append(piece[:CONTEXT])
            ys.append(piece[CONTEXT:])
        return torch.stack(xs), torch.stack(ys)


class DictAdam:
    def __init__(self, params, lr=2e-3, betas=(0.9, 0.98), eps=1e-8):
        self.params, self.lr, self.betas, self.eps, self.t = params, lr, betas, eps, 0
        self.m = {k: torch.zeros_like(v) for k, v in params.items()}
        self.v = {k: torch.zeros_like(v) for k, v in params.items()}

    @torch.no_grad()
    def step(self, grads):
        self.t += 1
        b1, b2 = self.betas
        for k, g in grads.items():
            self.m[k].mul_(b1).add_(g, alpha=1 - b1)
            self.v[k].mul_(b2).addcmul_(g, g, value=1 - b2)
            top = self.m[k] / (1 - b1 ** self.t)
            low = (self.v[k] / (1 - b2 ** self.t)).sqrt() + self.eps
            self.params[k].sub_(self.lr * top / low)


def run(seed=70, steps=45):
    torch.manual_seed(seed)
    model = Forecaster()
    params = {k: v.detach().clone() for k, v in model.named_parameters()}
    objective = grad_and_value(lambda p, x, y: pinball(functional_call(model, p, (x,)), y))
    opt, data = DictAdam(params), Archive(seed)
    for i in range(1, steps + 1):
        x, y = data.batch()
        grads, loss = objective(params, x, y)
        opt.step(grads)
        print(f"{i:3d}  pinball {loss.item():.6f}  flat {int((x.abs().amax(1) == 0).sum())}", flush=True)
    print("L1 of parameters:", sum(v.abs().sum().item() for v in params.values()), flush=True)


if __name__ == "__main__":
    run()
