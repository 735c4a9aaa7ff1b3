"""Daily sales of vending kiosks: a small GRU, exp link, negative binomial likelihood; parameters are a plain dict
(torch.func), the optimizer is our own."""
import json
import threading
import queue

import torch
from torch import nn
from torch.func import functional_call, grad_and_value

DAYS, KIOSKS, CONTEXT = 21, 12, 14
STEPS = 32
torch.manual_seed(77)


class Signum:
    """momentum, then a step of fixed length along its direction, per tensor"""

    def __init__(self, params, lr, beta=0.8):
        self.params, self.lr, self.beta = params, lr, beta
        self.state = {k: torch.zeros_like(v) for k, v in params.items()}

    @torch.no_grad()
    def step(self, grads):
        for k, p in self.params.items():
            m = self.state[k].mul_(self.beta).add_(grads[k], alpha=1 - self.beta)
            p -= self.lr * m / (m.norm() + 1e-8) * p.numel() ** 0.5


class Forecaster(nn.Module):
    def __init__(self, d=24):
        super().__init__()
        self.gru = nn.GRU(3, d, batch_first=True)
        self.rate, self.shape = nn.Linear(d + 1, 1), nn.Linear(d, 1)

    def forward(self, past, covariates):
        h = self.gru(past)[0][:, -1:]
        h = h.expand(-1, covariates.shape[1], -1)
        mu = torch.exp(self.rate(torch.cat([h, covariates], 2))).squeeze(2)
        r = nn.functional.softplus(self.shape(h)).squeeze(2) + 1e-3
        return mu, r


def nb_nll(y, mu, r):
    """-log NB(y; mean mu, size r)"""
    return -(torch.lgamma(y + r) - torch.lgamma(r) - torch.lgamma(y + 1)
             + r * torch.log(r / (r + mu)) + y * torch.log(mu / (r + mu))).mean()


def feed(out):
    """reads the log of the kiosks: one JSON line per kiosk and window"""
    g = torch.Generator().manual_seed(78)
    for i in range(STEPS * KIOSKS):
        temp = (18 + 7 * torch.randn(1, generator=g)) + 2 * torch.randn(DAYS, generator=g)     # degrees Celsius
        base = torch.exp(1.0 + 0.06 * (temp - 18))
        y = torch.poisson(base * (0.5 + torch.rand(DAYS, generator=g)), generator=g)
        if i == 231:
            temp[CONTEXT + 2] = 9999.0         # sensor unplugged, the kiosk sends its code for "no reading"
        out.put(json.dumps({"temp": temp.tolist(), "sold": y.tolist()}))
    out.put(None)


def windows(lines):
    rows = []
    while (line := lines.get()) is not None:
        rows.append(json.loads(line))
        if len(rows) == KIOSKS:
            temp = torch.tensor([r["temp"] for r in rows])
            sold = torch.tensor([r["sold"] for r in rows])
            z = (temp - 18) / 7
            week = torch.arange(DAYS).remainder(7).div(7).expand(KIOSKS, -1)
            past = torch.stack([torch.log1p(sold), z, week], 2)[:, :CONTEXT]
            yield past, z[:, CONTEXT:, None], sold[:, CONTEXT:]
            rows = []


def main():
    net = Forecaster()
    with torch.no_grad():
        net.rate.weight[:, -1] = 0.2           # warmer days sell more
    params = {k: v.detach().clone() for k, v in net.named_parameters()}
    opt = Signum(params, lr=0.01)
    lines = queue.Queue(maxsize=50)
    threading.Thread(target=feed, args=(lines,), daemon=True).start()

    def loss_of(p, past, cov, y):
        mu, r = functional_call(net, p, (past, cov))
        return nb_nll(y, mu, r)

    step_of = grad_and_value(loss_of)
    for step, (past, cov, y) in enumerate(windows(lines), 1):
        grads, loss = step_of(params, past, cov, y)
        opt.step(grads)
        print(json.dumps({"step": step, "nll": round(loss.item(), 6), "sold": y.sum().item()}), flush=True)
    print(sum(v.abs().sum().item() for v in params.values()), flush=True)


if __name__ == "__main__":
    main()
