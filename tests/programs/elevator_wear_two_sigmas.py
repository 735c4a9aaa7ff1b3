import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset, random_split


class LiftDataModule:
    """Rides of one lift: brake wear (computed by the controller) and door time (measured by hand)."""

    def __init__(self, n=600, batch=40):
        self.n, self.batch = n, batch

    def prepare(self):
        load, trips, floor = torch.rand(3, self.n)
        x = torch.stack([load, trips, floor], 1)
        wear = 0.5 * load + 0.3 * trips
        door = 0.8 * floor + 0.4 * torch.randn(self.n)
        self.train, self.valid = random_split(TensorDataset(x, torch.stack([wear, door], 1)), [520, 80])

    def train_loader(self):
        return DataLoader(self.train, self.batch, shuffle=True, drop_last=True)


class HomoscedasticWeights(nn.Module):
    def __init__(self, tasks):
        super().__init__()
        self.sigma = nn.Parameter(torch.ones(tasks))

    def forward(self, losses):
        weighted = losses / (2 * self.sigma ** 2)
        return (weighted + torch.log(self.sigma)).sum()


class LiftNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.shared = nn.Sequential(nn.Linear(3, 20), nn.GELU())
        self.wear, self.door = nn.Linear(20, 1), nn.Linear(20, 1)
        self.balance = HomoscedasticWeights(2)

    def forward(self, x, y):
        h = self.shared(x)
        out = torch.cat([self.wear(h), self.door(h)], 1)
        errors = (out - y).square().mean(0)
        return self.balance(errors), errors.detach()


class Fit:
    def __init__(self, model, data, epochs):
        self.model, self.data, self.epochs = model, data, epochs
        self.optimizer = optim.Adam([
            {"params": [p for n, p in model.named_parameters() if "sigma" not in n], "lr": 0.02},
            {"params": [model.balance.sigma], "lr": 0.13},
        ])
        self.step = 0

    def run(self):
        loader = self.data.train_loader()
        for epoch in range(self.epochs):
            for x, y in loader:
                self.step += 1
                self.optimizer.zero_grad()
                loss, errors = self.model(x, y)
                loss.backward()
                self.optimizer.step()
                print(f"epoch {epoch} step {self.step} loss {loss.item():.4f} "
                      f"wear {errors[0].item():.5f} door {errors[1].item():.5f}")


torch.manual_seed(9)
data = LiftDataModule()
data.prepare()
model = LiftNet()
Fit(model, data, epochs=3).run()
print("all weights, squared and summed:", round(sum((p ** 2).sum().item() for p in model.parameters()), 4))
