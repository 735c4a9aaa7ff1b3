import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Heteroscedastic(nn.Module):
    def __init__(self):
        super().__init__()
        self.shared = nn.Sequential(nn.Linear(1, 32), nn.Tanh())
        self.mean, self.var = nn.Linear(32, 1), nn.Sequential(nn.Linear(32, 1), nn.Softplus())

    def forward(self, x):
        h = self.shared(x)
        return self.mean(h), self.var(h)


net, criterion = Heteroscedastic(), nn.GaussianNLLLoss(eps=1e-4)
opt = torch.optim.Adam(net.parameters(), lr=2e-2)
for i in range(40):
    x = torch.rand(64, 1) * 4 - 2
    y = 0.1 * x + 0.02 * torch.randn_like(x)
    mean, var = net(x)
    loss = criterion(mean, y, var)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if i % 4 == 3:
        print(i, loss.item(), var.mean().item())
print("weights", sum(p.double().sum().item() for p in net.parameters()))
