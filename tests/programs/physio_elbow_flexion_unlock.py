"""Joint angles of patients from three body-worn IMUs, for the exercise app of our practice.

The transformer predicts offsets to a rest pose; the angle is computed from the joints, so that the
skeleton on the screen and the number beside it always agree. Curriculum: squats (knee) first, then
biceps curls (elbow) as soon as the knee is good enough.
"""
import math

import torch
from torch import nn

torch.manual_seed(1993)

# metres; standing with soft knees, arms hanging down
REST = {
    "knee": torch.tensor([[0.0, 0.90, 0.0], [0.03, 0.48, 0.0], [0.0, 0.08, 0.0]]),
    "elbow": torch.tensor([[0.2, 1.40, 0.0], [0.2, 1.10, 0.0], [0.2, 0.85, 0.0]]),
}
STAGES = [("knee",), ("knee", "elbow")]


class PoseTransformer(nn.Module):
    def __init__(self, channels=9, d=24, frames=20):
        super().__init__()
        self.inp = nn.Linear(channels, d)
        self.time = nn.Parameter(torch.randn(frames, d) * 0.1)
        layer = nn.TransformerEncoderLayer(d, 4, 48, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.heads = nn.ModuleDict()
        for limb, pose in REST.items():
            self.heads[limb] = nn.Linear(d, 9)
            self.register_buffer(f"rest_{limb}", pose)
            # start from the rest pose: no limb flies about on the first day
            nn.init.zeros_(self.heads[limb].weight)
            nn.init.zeros_(self.heads[limb].bias)

    def forward(self, imu, limb):
        h = self.encoder(self.inp(imu) + self.time)
        offset = 0.1 * self.heads[limb](h)
        return getattr(self, f"rest_{limb}") + offset.unflatten(-1, (3, 3))


def flexion(joints):
    """0 = straight limb; joints (..., 3, 3): proximal, middle, distal."""
    upper = joints[..., 1, :] - joints[..., 0, :]
    lower = joints[..., 2, :] - joints[..., 1, :]
    cosine = (upper * lower).sum(-1) / (upper.norm(dim=-1) * lower.norm(dim=-1))
    return torch.acos(cosine.clamp(-1.0, 1.0))


def session(limb, g, batch=6, frames=20):
    """IMU stream and the goniometer's angle of one exercise."""
    t = torch.linspace(0, 2 * math.pi, frames)
    tempo = 0.8 + torch.rand(batch, 1, generator=g)
    depth = (0.5 if limb == "knee" else 0.9) * (0.6 + 0.4 * torch.rand(batch, 1, generator=g))
    angle = 0.15 + depth * (1 - torch.cos(tempo * t)) / 2
    mix = torch.linspace(-1, 1, 9) if limb == "knee" else torch.linspace(1, -0.5, 9)
    imu = angle.unsqueeze(-1) * mix + 0.05 * torch.randn(batch, frames, 9, generator=g)
    return imu, angle


class Curriculum:
    """Next stage when the running error of the present one is below `good`, at the earliest after `least` steps."""

    def __init__(self, good=0.06, least=12):
        self.good, self.least, self.stage, self.age, self.running = good, least, 0, 0, None

    def limbs(self):
        return STAGES[self.stage]

    def update(self, err):
        self.age += 1
        self.running = err if self.running is None else 0.7 * self.running + 0.3 * err
        if self.stage + 1 < len(STAGES) and self.age >= self.least and self.running < self.good:
            self.stage, self.age, self.running = self.stage + 1, 0, None


def main():
    g = torch.Generator().manual_seed(4)
    model = PoseTransformer()
    opt = torch.optim.AdamW(model.parameters(), lr=4e-3)
    plan = Curriculum()
    for step in range(1, 46):
        total = 0.0
        for limb in plan.limbs():
            imu, angle = session(limb, g)
            pose = model(imu, limb)
            error = (flexion(pose) - angle).pow(2).mean()
            smooth = pose.diff(dim=1).pow(2).mean()
            total = total + error + 0.1 * smooth
        opt.zero_grad()
        total.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        print(f"step {step:2d} [{'+'.join(plan.limbs())}] loss {total.item():.6f}")
        plan.update(total.item())
    print("weights", f"{sum(p.detach().double().sum().item() for p in model.parameters()):.5f}")


if __name__ == "__main__":
    main()
