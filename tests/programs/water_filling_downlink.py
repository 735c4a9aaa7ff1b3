"""Satellite downlink: a network predicts channel noise, power is poured over the carriers by water filling.

The water level is found by bisection, its derivative by the implicit function theorem.
"""
import torch
from torch import nn

CARRIERS = 6


class WaterFill(torch.autograd.Function):
    """power_i = max(0, level - noise_i) with sum(power) = budget, row by row."""

    @staticmethod
    def forward(ctx, noise, budget):
        low = noise.amin(-1, keepdim=True)
        high = noise.amax(-1, keepdim=True) + budget
        for _ in range(40):
            level = 0.5 * (low + high)
            spent = (level - noise).clamp(min=0).sum(-1, keepdim=True)
            low = torch.where(spent < budget, level, low)
            high = torch.where(spent < budget, high, level)
        power = (low - noise).clamp(min=0)
        ctx.save_for_backward((power > 0).to(noise.dtype))
        return power

    @staticmethod
    def backward(ctx, grad_power):
        (active,) = ctx.saved_tensors
        through_level = (grad_power * active).sum(-1, keepdim=True) / active.sum(-1, keepdim=True)
        return active * (through_level - grad_power), None


class LinkPlanner(nn.Module):
    def __init__(self):
        super().__init__()
        self.weather = nn.Sequential(nn.Linear(7, 32), nn.SiLU(), nn.Linear(32, CARRIERS))

    def forward(self, telemetry, budget):
        noise = 0.05 + nn.functional.softplus(self.weather(telemetry))
        return WaterFill.apply(noise, budget), noise


def negative_capacity(power, real_noise):
    return -torch.log2(1.0 + power / real_noise).sum(-1).mean()


def make_pass(gen, n=16, eclipsed=0):
    telemetry = torch.randn(n, 7, generator=gen)
    real_noise = 0.1 + torch.rand(n, CARRIERS, generator=gen) * (1.0 + telemetry[:, :CARRIERS].abs())
    budget = 0.5 + 3.0 * torch.rand(n, 1, generator=gen)
    if eclipsed:
        budget[:eclipsed] = 0.0             # batteries low behind the earth: the transmitter is off
    return telemetry, real_noise, budget


def watch(history):
    def hook(module, args, output):
        history.append(output.detach().abs().mean().item())
    return hook


def main():
    torch.manual_seed(14)
    gen = torch.Generator().manual_seed(14)
    planner = LinkPlanner()
    history = []
    planner.weather.register_forward_hook(watch(history))
    opt = torch.optim.Adam([{"params": planner.weather[0].parameters(), "lr": 1e-3},
                            {"params": planner.weather[2].parameters(), "lr": 4e-3}])
    eclipses = {15: 3, 16: 1, 29: 2}
    for orbit in range(1, 41):
        telemetry, real_noise, budget = make_pass(gen, eclipsed=eclipses.get(orbit, 0))
        power, _ = planner(telemetry, budget)
        loss = negative_capacity(power, real_noise)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"orbit {orbit:2d} bits/s/Hz {-loss.item():.5f} weather {history[-1]:.4f}")
    print("finite", int(all(p.isfinite().all() for p in planner.parameters())))


if __name__ == "__main__":
    main()
