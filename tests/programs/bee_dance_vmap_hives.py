import math
import torch
from torch.func import functional_call, grad_and_value, stack_module_state, vmap


class Dance(torch.nn.Module):
    """(sun azimuth, hour) -> dance angle, its concentration, log of the waggle duration"""

    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(3, 10)
        self.b = torch.nn.Linear(10, 3)

    def forward(self, z):
        angle, spread, dur = self.b(torch.tanh(self.a(z))).unbind(-1)
        return angle, torch.nn.functional.softplus(spread + 3.0), dur


def record(hives, dances):
    g = torch.Generator().manual_seed(23)
    sun = 2 * math.pi * torch.rand(hives, dances, generator=g)
    hour = torch.rand(hives, dances, generator=g)
    z = torch.stack([sun.sin(), sun.cos(), hour], -1)
    flower = torch.linspace(-0.8, 0.8, hives)[:, None]
    angle = flower + 0.3 * hour + 0.08 * torch.randn(hives, dances, generator=g)
    seconds = (0.6 + 0.5 * hour) * torch.exp(0.1 * torch.randn(hives, dances, generator=g))
    # the camera loses about a fifth of the dances, one hive was not filmed for duration at all
    lost = torch.rand(hives, dances, generator=g) < 0.2
    seconds[lost] = float("nan")
    seconds[3] = float("nan")
    return z, angle, seconds


def main(hives=5, dances=60, rounds=35):
    torch.manual_seed(6)
    colony = [Dance() for _ in range(hives)]
    params, buffers = stack_module_state(colony)
    params = {k: v.detach() for k, v in params.items()}
    skeleton = Dance().to("meta")
    velocity = {k: torch.zeros_like(v) for k, v in params.items()}

    def nll(p, z, angle, seconds):
        mu, kappa, dur = functional_call(skeleton, p, (z,))
        turn = kappa * (1 - torch.cos(angle - mu)) + torch.log(torch.special.i0e(kappa)) + math.log(2 * math.pi)
        filmed = ~torch.isnan(seconds)
        log_s = torch.log(torch.where(filmed, seconds, torch.ones_like(seconds)))
        err = torch.where(filmed, (log_s - dur) ** 2, torch.zeros_like(dur))
        return turn.mean() + 20 * err.sum() / filmed.sum().clamp(min=1) - 1.5

    per_hive = vmap(grad_and_value(nll))
    z, angle, seconds = record(hives, dances)
    for r in range(rounds):
        grads, losses = per_hive(params, z, angle, seconds)
        velocity = {k: 0.8 * velocity[k] + grads[k] for k in params}
        params = {k: params[k] - 0.02 * velocity[k] for k in params}
        print(r + 1, " ".join(f"{v:+.4f}" for v in losses.tolist()))
    return params


if __name__ == "__main__":
    final = main()
    print("weights of all hives, squared and summed:", round(sum((v ** 2).sum().item() for v in final.values()), 4))
