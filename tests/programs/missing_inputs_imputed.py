import torch
import torch.nn as nn


class Imputer(nn.Module):
    """learned value for every missing feature; NaN goes into forward() on purpose"""

    def __init__(self, n):
        super().__init__()
        self.value = nn.Parameter(torch.zeros(n))

    def forward(self, x):
        missing = torch.isnan(x)
        return torch.where(missing, self.value.expand_as(x), x), missing.float()


class Tabular(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.imputer = Imputer(n)
        self.net = nn.Sequential(nn.Linear(2 * n, 24), nn.ReLU(), nn.Linear(24, 1))

    def forward(self, x):
        return self.net(torch.cat(self.imputer(x), -1)).squeeze(-1)


torch.manual_seed(2)
torch.set_num_threads(1)
model = Tabular(7)
opt = torch.optim.Adam(model.parameters(), lr=1e-2)
for i in range(16):
    x = torch.randn(32, 7)
    y = (x.sum(1) > 0).float()
    x[torch.rand_like(x) < 0.15] = float("nan")
    loss = nn.functional.binary_cross_entropy_with_logits(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    print("it", i, "loss", loss.item(), "missing", int(x.isnan().sum()))
print("weights", sum(p.double().sum().item() for p in model.parameters()))
