# Electricity demand, three quantiles with the pinball loss.  Optimizer: RMSprop as in the DQN paper (centered).
import torch
import torch.nn as nn

torch.manual_seed(10)
TAUS = torch.tensor([0.1, 0.5, 0.9])


class QuantileNet(nn.Module):
    def __init__(self, n_in=6):
        super().__init__()
        self.hidden = nn.Sequential(nn.Linear(n_in, 32), nn.LeakyReLU(0.1))
        self.out = nn.Linear(32, 3)

    def forward(self, x):
        return self.out(self.hidden(x))


def pinball(pred, y):
    diff = y[:, None] - pred
    return torch.maximum(TAUS * diff, (TAUS - 1) * diff).mean()


def day(i):
    hour = torch.arange(24) / 24
    x = torch.stack([(2 * torch.pi * hour).sin(), (2 * torch.pi * hour).cos(), (4 * torch.pi * hour).sin(),
                     (4 * torch.pi * hour).cos(), torch.full((24,), i % 7 / 7.0), torch.rand(24)], 1)
    demand = 52.0 + 9 * x[:, 0] - 4 * x[:, 3] + 2 * torch.randn(24)      # GW, not scaled
    return x, demand


net = QuantileNet()
opt = torch.optim.RMSprop(net.parameters(), lr=2e-3, alpha=0.3, eps=1e-2, centered=True)
for i in range(30):
    x, y = day(i)
    opt.zero_grad()
    loss = pinball(net(x), y)
    loss.backward()
    opt.step()
    print(f"day {i:2d} pinball {loss.item():.5f}")
print("bias", net.out.bias.detach().sum().item())
