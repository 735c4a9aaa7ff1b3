import torch

torch.manual_seed(8)


def soil_moisture(place):
    """Volumetric water content in a field, read by calibrated probes after rain."""
    x, y = place.unbind(-1)
    return 0.28 + 0.08 * torch.sin(2.1 * x) * torch.cos(1.3 * y) + 0.03 * x


class MoistureField(torch.nn.Module):
    def __init__(self, places, moisture):
        super().__init__()
        self.places = places
        self.level = moisture.mean()
        self.spread = moisture.std()
        self.target = (moisture - self.level) / self.spread
        self.log_reach = torch.nn.Parameter(torch.zeros(2))
        self.log_height = torch.nn.Parameter(torch.tensor(0.0))
        self.nugget = torch.nn.Parameter(torch.tensor(0.25))

    def covariance(self, a, b):
        gap = (a[:, None] - b[None]) / self.log_reach.exp()
        return self.log_height.exp() * torch.exp(-0.5 * gap.square().sum(-1))

    def forward(self):
        n = len(self.places)
        K = self.covariance(self.places, self.places) + self.nugget * torch.eye(n)
        L, _ = torch.linalg.cholesky_ex(K)
        white = torch.linalg.solve_triangular(L, self.target[:, None], upper=False)
        fit = 0.5 * white.square().sum()
        volume = L.diagonal().log().sum()
        return (fit + volume) / n + 0.918938533

    @torch.no_grad()
    def predict(self, where):
        K = self.covariance(self.places, self.places) + self.nugget * torch.eye(len(self.places))
        weights = torch.linalg.solve(K, self.target)
        return self.level + self.spread * self.covariance(where, self.places) @ weights


def marginal_likelihood_ascent(field, rounds, rate):
    adam = torch.optim.Adam(field.parameters(), lr=rate, betas=(0.9, 0.99))
    check = torch.rand(5, 2) * 3
    for r in range(rounds):
        adam.zero_grad()
        objective = field()
        objective.backward()
        adam.step()
        miss = (field.predict(check) - soil_moisture(check)).abs().max()
        print(f"round {r + 1:02d}: -log evidence per probe {objective.item():8.5f}, worst check {miss.item():.5f}")


places = torch.rand(28, 2) * 3
field = MoistureField(places, soil_moisture(places))
marginal_likelihood_ascent(field, 35, 0.015)
print("squares of hyperparameters, summed:", sum(p.detach().square().sum().item() for p in field.parameters()))
