# Inflow of a reservoir: to promise too little room is far worse than to promise too much,
# hence the asymmetric LINEX loss.
import torch
from torch import nn, optim


class Linex(nn.Module):
    def __init__(self, asymmetry):
        super().__init__()
        self.asymmetry = asymmetry

    def forward(self, forecast, inflow):
        scaled = self.asymmetry * (inflow - forecast)
        return (torch.exp(scaled) - scaled - 1).mean()


class Catchment:
    def __init__(self, days=98):
        g = torch.Generator().manual_seed(12)
        rain = torch.distributions.Exponential(1.0).icdf(torch.rand(days, generator=g) * 0.98)
        soil = torch.zeros(days)
        for d in range(1, days):
            soil[d] = 0.8 * soil[d - 1] + 0.2 * rain[d - 1]
        flow = 2 * soil + 0.5 * rain + 0.2 * torch.randn(days, generator=g)
        calm = flow.median()
        self.x = torch.stack([rain, soil, soil ** 2], 1)
        self.y = (flow - calm) / flow.std()
        self.y[61] = 52.0          # the night of the dam gates

    def weeks(self):
        yield from zip(self.x.split(7), self.y.split(7))


class Fit:
    def __init__(self, model, criterion, catchment):
        self.model = model
        self.criterion = criterion
        self.catchment = catchment
        self.optimizer = optim.SGD(model.parameters(), lr=0.01)
        self.scheduler = optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)
        self.log = []

    def training_step(self, x, y):
        forecast = self.model(x)[:, 0]
        return self.criterion(forecast, y)

    def __call__(self, years):
        for year in range(years):
            for week, (x, y) in enumerate(self.catchment.weeks()):
                self.optimizer.zero_grad()
                loss = self.training_step(x, y)
                loss.backward()
                nn.utils.clip_grad_value_(self.model.parameters(), 1.0)
                self.optimizer.step()
                self.log.append(loss.item())
                print("year", year, "week", week, "linex", self.log[-1])
            self.scheduler.step()
        return self


torch.manual_seed(1)
net = nn.Sequential(nn.Linear(3, 9), nn.ReLU(), nn.Linear(9, 1))
fit = Fit(net, Linex(2.0), Catchment())(3)
print(sum(p.detach().sum().item() for p in net.parameters()))
