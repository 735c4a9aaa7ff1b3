"""Vineyard pruning arm: link lengths and encoder offsets are calibrated from logged poses with LBFGS.

The arm works its way outwards along a row of vines; after each group of poses the calibration goes on with that group.
"""
import math
import torch

torch.manual_seed(8)
torch.set_default_dtype(torch.float64)
TRUE = dict(upper=0.62, fore=0.55, base=0.03)


class ArmModel(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.upper = torch.nn.Parameter(torch.tensor(0.58))
        self.fore = torch.nn.Parameter(torch.tensor(0.51))
        self.base = torch.nn.Parameter(torch.tensor(0.0))
        self.offset = torch.nn.Parameter(torch.zeros(2))

    def forward(self, xy):
        """Inverse kinematics: tip position -> (shoulder, elbow), elbow down."""
        x, y = xy[:, 0] - self.base, xy[:, 1]
        r2 = x ** 2 + y ** 2
        c = (r2 - self.upper ** 2 - self.fore ** 2) / (2 * self.upper * self.fore)
        elbow = torch.acos(c)
        shoulder = torch.atan2(y, x) - torch.atan2(self.fore * torch.sin(elbow), self.upper + self.fore * torch.cos(elbow))
        return torch.stack([shoulder, elbow], 1) + self.offset


def log_poses(group, g, n=10):
    """Joint angles that were driven and the tip positions that the tracker saw (2 mm noise)."""
    stretch = max(1.45 - 0.075 * group, 0.04)
    elbow = stretch + 0.12 * torch.rand(n, generator=g)
    shoulder = -0.7 + 1.2 * torch.rand(n, generator=g)
    x = TRUE["base"] + TRUE["upper"] * torch.cos(shoulder) + TRUE["fore"] * torch.cos(shoulder + elbow)
    y = TRUE["upper"] * torch.sin(shoulder) + TRUE["fore"] * torch.sin(shoulder + elbow)
    tip = torch.stack([x, y], 1) + 0.002 * torch.randn(n, 2, generator=g)
    return tip, torch.stack([shoulder, elbow], 1)


def wrapped(d):
    return torch.atan2(torch.sin(d), torch.cos(d))


def calibrate(groups=30):
    g = torch.Generator().manual_seed(41)
    arm = ArmModel()
    start = {k: v.detach().clone() for k, v in arm.named_parameters()}
    opt = torch.optim.LBFGS(arm.parameters(), lr=0.2, max_iter=3, history_size=5)
    for k in range(1, groups + 1):
        tip, joints = log_poses(k, g)

        def closure():
            opt.zero_grad()
            misfit = wrapped(arm(tip) - joints).square().mean()
            prior = sum((p - start[n]).square().sum() for n, p in arm.named_parameters())
            loss = misfit + 1e-3 * prior
            loss.backward()
            return loss

        loss = opt.step(closure)
        reach = (tip - torch.tensor([TRUE["base"], 0.0])).norm(dim=1).max()
        print(f"group {k:2d} loss {loss.item():.9f} reach {reach.item():.5f}", flush=True)
    print(f"{sum(p.abs().sum().item() for p in arm.parameters()):.9f}", flush=True)


if __name__ == "__main__":
    calibrate()
