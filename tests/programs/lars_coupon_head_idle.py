"""Layer-wise rate scaling (You et al. 2017) for a two-headed basket model: spend for all, redemption for coupon users."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class Lars(torch.optim.Optimizer):
    """LARS without weight decay. One-dimensional tensors get the plain rate."""

    def __init__(self, params, lr=0.05, momentum=0.8, eta=0.02):
        super().__init__(params, dict(lr=lr, momentum=momentum, eta=eta))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                g = p.grad
                if p.ndim > 1:
                    trust = group["eta"] * p.norm() / g.norm()
                    d = g * trust
                else:
                    d = g
                state = self.state[p]
                if "velocity" not in state:
                    state["velocity"] = torch.zeros_like(p)
                v = state["velocity"]
                v.mul_(group["momentum"]).add_(d)
                p.add_(v, alpha=-group["lr"])


class BasketNet(nn.Module):
    def __init__(self, items=30, width=24):
        super().__init__()
        self.items = nn.Linear(items, width)
        self.mid = nn.Linear(width, width)
        self.spend = nn.Linear(width, 1)
        self.redeem = nn.Linear(width, 1)

    def forward(self, basket):
        z = torch.tanh(self.mid(torch.tanh(self.items(basket))))
        return self.spend(z).squeeze(-1), self.redeem(z).squeeze(-1)


class TillTape:
    """Baskets in the order of the till; coupons are handed out from Monday to Saturday."""

    def __init__(self, seed, days=36, per_day=32):
        self.gen = torch.Generator().manual_seed(seed)
        self.days, self.per_day = days, per_day
        self.price = 4 * torch.rand(30, generator=self.gen)

    def __iter__(self):
        for day in range(self.days):
            basket = (torch.rand(self.per_day, 30, generator=self.gen) < 0.15).float()
            has_coupon = torch.rand(self.per_day, generator=self.gen) < 0.3
            if day == 20:  # bank holiday
                has_coupon = torch.zeros_like(has_coupon)
            spend = torch.log1p(basket @ self.price)
            redeemed = (basket[:, :6].sum(-1) > 0).float()
            yield basket, spend, has_coupon.float(), redeemed


def losses(net, basket, spend, has_coupon, redeemed):
    s, r = net(basket)
    per = F.binary_cross_entropy_with_logits(r, redeemed, reduction="none")
    return F.mse_loss(s, spend), (per * has_coupon).sum() / has_coupon.sum().clamp(min=1)


def main():
    torch.manual_seed(64)
    net = BasketNet()
    opt = Lars(net.parameters())
    for day, batch in enumerate(TillTape(seed=12), 1):
        opt.zero_grad()
        a, b = losses(net, *batch)
        (a + 0.5 * b).backward()
        opt.step()
        print(f"day {day:02d} spend {a.item():.6f} redeem {b.item():.6f} coupons {int(batch[2].sum())}")
    total = sum(p.detach().double().sum() for p in net.parameters())
    print(f"sum of weights {total.item():.6f}")


main()
