# Posterior over a small flux model for a raised bog, by stochastic gradient Langevin dynamics.
import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR


class SGLD(Optimizer):
    def __init__(self, params, lr=1e-3, n_data=1, prior=1.0):
        super().__init__(params, dict(lr=lr, n_data=n_data, prior=prior))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            lr = torch.as_tensor(group["lr"])
            spread = (2 * lr / group["n_data"]).sqrt()
            for p in group["params"]:
                if p.grad is None:
                    continue
                drift = p.grad + p / (group["prior"] ** 2 * group["n_data"])
                p.add_(spread * torch.randn_like(p) - lr * drift)


def chamber_campaign(n=288):
    temp = 5 + 15 * torch.rand(n)
    table = -0.4 * torch.rand(n)
    sedge = (torch.rand(n) < 0.4).float()
    flux = 0.15 * temp + 4 * table + 1.2 * sedge + 0.3 * torch.randn(n)
    x = torch.stack([(temp - 12.5) / 5, (table + 0.2) / 0.15, sedge - 0.4], 1)
    return x, (flux - flux.mean()) / flux.std()


class FluxNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 20), nn.Tanh(), nn.Linear(20, 1))

    def forward(self, x):
        return self.layers(x)[:, 0]


def sweep(loader, net, opt, sched, done, samples=None):
    for x, y in loader:
        done += 1
        loss = 0.5 * ((net(x) - y) ** 2).mean()
        net.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if samples is not None:
            samples.append(nn.utils.parameters_to_vector(net.parameters()).detach().clone())
        print("draw", done, "half squared error", round(loss.item(), 5))
    return done


torch.manual_seed(90)
x, y = chamber_campaign()
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=24, shuffle=True)
net = FluxNet()
opt = SGLD(net.parameters(), lr=0.15, n_data=len(x))
burn_in = 2 * len(loader)
sched = LambdaLR(opt, lambda k: 1 - k / burn_in)

done = 0
for _ in range(2):
    done = sweep(loader, net, opt, sched, done)
kept = []
done = sweep(loader, net, opt, sched, done, kept)

cloud = torch.stack(kept)
print("draws kept", len(cloud), "of length", cloud.shape[1])
print("sum of squares of the last draw", cloud[-1].square().sum().item())
