"""Fuel demand of a brick kiln from load and humidity; the optimizer adapts its own rate (hypergradient, multiplicative)."""
import torch


class HyperRate(torch.optim.Optimizer):
    def __init__(self, params, rate=5e-4, kappa=3e-3):
        super().__init__(params, dict(kappa=kappa))
        self.rate = torch.tensor(rate)

    @torch.no_grad()
    def step(self, closure=None):
        agreement = torch.zeros(())
        for group in self.param_groups:
            for p in group["params"]:
                before = self.state[p].get("before")
                if before is not None:
                    agreement = agreement + (p.grad * before).sum()
                self.state[p]["before"] = p.grad.clone()
            self.rate = self.rate * torch.exp(group["kappa"] * agreement)
            for p in group["params"]:
                p.sub_(self.rate * p.grad)


def shifts(n):
    """Shift logs of the kiln, first with the old meter, then with the new one."""
    g = torch.Generator().manual_seed(23)
    for i in range(n):
        x = torch.rand(30, 2, generator=g)
        power = 2.0 + 1.5 * x[:, 0] + 0.7 * x[:, 1] + 0.05 * torch.randn(30, generator=g)
        yield x, power if i < 18 else power * 1000


def main():
    torch.manual_seed(23)
    net = torch.nn.Sequential(torch.nn.Linear(2, 10), torch.nn.Softplus(), torch.nn.Linear(10, 1))
    opt = HyperRate(net.parameters())
    for i, (x, y) in enumerate(shifts(38), 1):
        opt.zero_grad()
        loss = 0.5 * (net(x).squeeze(1) - y).square().mean()
        loss.backward()
        opt.step()
        print(f"shift {i:02d} loss {loss.item():.6g} rate {opt.rate.item():.4g}")
    print("sum of |w|:", f"{sum(p.abs().sum().item() for p in net.parameters()):.6g}")


main()
