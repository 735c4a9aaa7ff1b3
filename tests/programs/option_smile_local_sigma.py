import math
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, Dataset

SQ2 = math.sqrt(2.0)


def call_price(sigma, strike, years):
    sd = sigma * years.sqrt()
    d1 = (-strike.log() + 0.5 * sd * sd) / sd
    cdf = lambda z: 0.5 * torch.erfc(-z / SQ2)
    return cdf(d1) - strike * cdf(d1 - sd)


class ImpliedVol(torch.autograd.Function):
    """price -> volatility by bisection; the derivative comes from the implicit function theorem"""

    @staticmethod
    def forward(ctx, price, strike, years):
        lo, hi = torch.full_like(price, 0.01), torch.full_like(price, 3.0)
        for _ in range(40):
            mid = 0.5 * (lo + hi)
            above = call_price(mid, strike, years) > price
            hi, lo = torch.where(above, mid, hi), torch.where(above, lo, mid)
        sigma = 0.5 * (lo + hi)
        ctx.save_for_backward(sigma, strike, years)
        return sigma

    @staticmethod
    def backward(ctx, grad):
        sigma, strike, years = ctx.saved_tensors
        sd = sigma * years.sqrt()
        d1 = (-strike.log() + 0.5 * sd * sd) / sd
        vega = torch.exp(-0.5 * d1 * d1) / math.sqrt(2 * math.pi) * years.sqrt()
        return grad / vega, None, None


class Quotes(Dataset):
    def __init__(self, n=6 * 30):
        g = torch.Generator().manual_seed(77)
        self.years = 0.25 + 0.75 * torch.rand(n, generator=g)
        self.strike = 0.9 + 0.2 * torch.rand(n, generator=g)
        self.years[100], self.strike[100] = 5 / 365, 1.35          # the feed carries a weekly as well
        self.market = 0.22 + 0.5 * (self.strike - 1.0) ** 2 - 0.08 * (self.strike - 1.0)

    def __len__(self):
        return len(self.years)

    def __getitem__(self, i):
        return self.strike[i], self.years[i], self.market[i]


class LocalSigma(torch.nn.Module):
    def __init__(self, steps=6, paths=400):
        super().__init__()
        self.surface = torch.nn.Sequential(torch.nn.Linear(2, 10), torch.nn.SiLU(), torch.nn.Linear(10, 1))
        shocks = torch.randn(steps, 1, paths // 2, generator=torch.Generator().manual_seed(8))
        self.register_buffer("shocks", torch.cat([shocks, -shocks], dim=-1))

    def forward(self, strike, years):
        steps = len(self.shocks)
        dt = (years / steps)[:, None]
        x = torch.zeros(len(strike), self.shocks.shape[-1])
        for i in range(steps):
            here = torch.stack([x, (i * dt).expand_as(x)], -1)
            sigma = 0.15 + 0.3 * torch.sigmoid(self.surface(here).squeeze(-1))
            x = x + sigma * dt.sqrt() * self.shocks[i] - 0.5 * sigma ** 2 * dt
        spot, k = x.exp(), strike[:, None]
        payoff = (spot > k).to(spot.dtype) * (spot - k)
        return payoff.mean(-1)


def calibrate():
    set_seed(21)
    acc = Accelerator(cpu=True)
    model = LocalSigma()
    opt = torch.optim.Adam(model.parameters(), lr=0.02)
    model, opt, loader = acc.prepare(model, opt, DataLoader(Quotes(), batch_size=6))
    for step, (strike, years, market) in enumerate(loader, start=1):
        price = model(strike, years)
        implied = ImpliedVol.apply(price, strike, years)
        loss = (100 * (implied - market)).square().mean()
        opt.zero_grad()
        acc.backward(loss)
        opt.step()
        acc.print(f"calibration step={step:02d} mse_in_vol_points={loss.item():.4f}")
    acc.print("weights, sum of squares:", sum((p.detach() ** 2).sum().item() for p in model.parameters()))


calibrate()
