# trajectory head: predict velocities, supervise the heading with wrapped angle differences
import math
import torch
from torch import nn

torch.manual_seed(21)
torch.set_num_threads(1)


def wrap(a):
    return (a + math.pi) % (2 * math.pi) - math.pi


class TrajectoryHead(nn.Module):
    def __init__(self, horizon=5, d=8):
        super().__init__()
        self.horizon = horizon
        self.motion = nn.Linear(d, 16, bias=False)
        self.out = nn.Linear(16, horizon * 2, bias=False)

    def forward(self, delta_features):
        v = self.out(torch.tanh(self.motion(delta_features))).view(-1, self.horizon, 2)
        heading = torch.atan2(v[..., 1], v[..., 0])
        speed = v.abs().sum(-1)
        return {"heading": heading, "speed": speed, "position": v.cumsum(1)}


def make_batch(i):
    x = torch.randn(16, 8)
    if i == 5:
        x[4] = 0            # parked: two identical frames, no motion features at all
    turn = x[:, :1] * torch.linspace(0.1, 1, 5)
    vel = torch.stack([torch.cos(turn), torch.sin(turn)], -1) * x[:, 1:2, None].abs()
    return x, {"heading": turn, "speed": vel.abs().sum(-1), "position": vel.cumsum(1)}


model = TrajectoryHead()
opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
weights = {"position": 1.0, "heading": 0.3, "speed": 0.1}
for i in range(14):
    x, gt = make_batch(i)
    pred = model(x)
    terms = {
        "position": nn.functional.smooth_l1_loss(pred["position"], gt["position"]),
        "heading": wrap(pred["heading"] - gt["heading"]).abs().mean(),
        "speed": nn.functional.l1_loss(pred["speed"], gt["speed"]),
    }
    total = sum(weights[k] * t for k, t in terms.items())
    opt.zero_grad()
    total.backward()
    opt.step()
    print(i, " ".join(f"{k}={t.item():.4f}" for k, t in terms.items()))
print("weights", sum(p.double().sum().item() for p in model.parameters()))
