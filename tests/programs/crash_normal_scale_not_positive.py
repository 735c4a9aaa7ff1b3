"""Wind speed with a predicted spread.  The spread comes straight out of a linear layer, and
nothing keeps it positive."""
import torch
from torch import nn
from torch.distributions import Normal
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(70)
torch.set_num_threads(1)


class WindModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(5, 24), nn.ReLU())
        self.mean = nn.Linear(24, 1)
        self.spread = nn.Linear(24, 1)
        nn.init.normal_(self.spread.weight, std=0.02)
        nn.init.constant_(self.spread.bias, 1.0)

    def forward(self, x):
        h = self.trunk(x)
        return self.mean(h).squeeze(-1), self.spread(h).squeeze(-1)

    def nll(self, x, y):
        mean, spread = self(x)
        return -Normal(mean, spread).log_prob(y).mean()


def measurements(n=640):
    g = torch.Generator().manual_seed(9)
    x = torch.randn(n, 5, generator=g)
    y = x[:, 0] - 0.5 * x[:, 1] + 0.05 * torch.randn(n, generator=g)
    return TensorDataset(x, y)


def main():
    model = WindModel()
    opt = torch.optim.Adam(model.parameters(), lr=2e-2)
    step = 0
    for epoch in range(10):
        for x, y in DataLoader(measurements(), batch_size=64, shuffle=False):
            step += 1
            loss = model.nll(x, y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            print(f"epoch {epoch} step {step:02d} nll {loss.item():.4f}")
    print("done")


if __name__ == "__main__":
    main()
