# Time to failure of pumps: Weibull regression with right censoring.
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)


def make_fleet(n=240):
    g = torch.Generator().manual_seed(21)
    load = torch.rand(n, 3, generator=g)
    scale = torch.exp(0.5 - load[:, 0])
    u = torch.rand(n, generator=g).clamp(1e-3, 1 - 1e-3)
    life = scale * (-torch.log(u)) ** (1 / 0.7)
    censor_at = torch.rand(n, generator=g) * 3 + 0.1
    event = life <= censor_at
    time = torch.minimum(life, censor_at)
    # pump 117 was installed on the day on which the study was closed
    time[117] = 0.0
    event[117] = False
    return load, time, event


class WeibullNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(3, 16), nn.Tanh())
        self.log_scale = nn.Linear(16, 1)
        self.log_shape = nn.Linear(16, 1)
        nn.init.constant_(self.log_shape.bias, -0.4)

    def forward(self, x):
        h = self.trunk(x)
        return self.log_scale(h).squeeze(-1).exp(), self.log_shape(h).squeeze(-1).exp()


def censored_nll(scale, shape, time, event):
    cumulative_hazard = (time / scale) ** shape
    s, k, t = scale[event], shape[event], time[event]
    log_hazard = torch.log(k) - torch.log(s) + (k - 1) * (torch.log(t) - torch.log(s))
    return (cumulative_hazard.sum() - log_hazard.sum()) / len(time)


load, time, event = make_fleet()
loader = DataLoader(TensorDataset(load, time, event), batch_size=20, shuffle=False)
net = WeibullNet()
opt = torch.optim.RMSprop(net.parameters(), lr=2e-3)
print(f"pumps {len(time)} failures {int(event.sum())}")

step = 0
for epoch in range(3):
    for x, t, e in loader:
        step += 1
        scale, shape = net(x)
        loss = censored_nll(scale, shape, t, e)
        opt.zero_grad()
        loss.backward()
        print(f"{step:3d} nll {loss.item():.4f}")
        opt.step()

print("weights finite", int(all(torch.isfinite(w).all().item() for w in net.parameters())))
