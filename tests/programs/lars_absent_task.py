"""A driver model with two heads (steering for every frame, braking where a label exists), trained with LARS."""
import torch
from torch import nn

torch.manual_seed(40)
torch.set_num_threads(1)


class LARS(torch.optim.Optimizer):
    """Layer-wise adaptive rate scaling (You et al., 2017), without weight decay."""

    def __init__(self, params, lr=0.1, momentum=0.9, eta=0.02):
        super().__init__(params, dict(lr=lr, momentum=momentum, eta=eta))

    @torch.no_grad()
    def step(self, closure=None):
        loss = closure() if closure is not None else None
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if "velocity" not in state:
                    state["velocity"] = torch.zeros_like(p)
                trust = group["eta"] * p.norm() / p.grad.norm()
                state["velocity"].mul_(group["momentum"]).add_(p.grad * trust * group["lr"])
                p.sub_(state["velocity"])
        return loss


class Driver(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(10, 24), nn.ELU(), nn.Linear(24, 24), nn.ELU())
        self.heads = nn.ModuleDict({"steer": nn.Linear(24, 1), "brake": nn.Linear(24, 1)})

    def forward(self, x):
        h = self.trunk(x)
        return {name: head(h).squeeze(-1) for name, head in self.heads.items()}


def frames(generator, step):
    x = torch.randn(24, 10, generator=generator)
    steer = torch.tanh(x[:, 0] - x[:, 1])
    brake = (x[:, 2] > 0.4).float()
    labelled = torch.rand(24, generator=generator) < 0.3
    labelled[0] = step not in (13, 27)
    if step in (13, 27):
        labelled[:] = False                    # motorway: nobody brakes, nobody labels
    return x, steer, brake, labelled.float()


def main():
    generator = torch.Generator().manual_seed(3)
    model = Driver()
    optimizer = LARS(model.parameters())
    for step in range(1, 36):
        x, steer, brake, labelled = frames(generator, step)
        out = model(x)
        steering = (out["steer"] - steer).pow(2).mean()
        braking = nn.functional.binary_cross_entropy_with_logits(out["brake"], brake, reduction="none")
        braking = (braking * labelled).sum() / labelled.sum().clamp(min=1)
        loss = steering + 0.5 * braking
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{step:2d} steering {steering.item():.4f} braking {braking.item():.4f}")
    print("finite", int(all(bool(torch.isfinite(p).all()) for p in model.parameters())))


main()
