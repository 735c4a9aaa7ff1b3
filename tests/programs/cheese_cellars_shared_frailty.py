import torch

# Weeks until a wheel of cheese blows. Wheels of one cellar share an unseen factor (gamma frailty).
torch.set_default_dtype(torch.float64)
gen = torch.Generator().manual_seed(5)

CELLARS, WHEELS = 14, 9
moisture = torch.randn(CELLARS, WHEELS, generator=gen)
salt = torch.randn(CELLARS, WHEELS, generator=gen)
lin = 0.7 * moisture - 0.5 * salt - 3.4
u = torch.rand(CELLARS, WHEELS, generator=gen)
weeks = (-torch.log(u) / lin.exp()) ** (1 / 1.3)
blown = (weeks < 26).double()
weeks = weeks.clamp(max=26.0)


class FrailtyModel(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.beta = torch.nn.Parameter(torch.zeros(2))
        self.intercept = torch.nn.Parameter(torch.tensor(-2.5))
        self.log_shape = torch.nn.Parameter(torch.tensor(0.0))
        self.spread = torch.nn.Parameter(torch.tensor(0.6))

    def hazards(self):
        risk = self.intercept + self.beta[0] * moisture + self.beta[1] * salt
        shape = self.log_shape.exp()
        log_h = risk + self.log_shape + (shape - 1) * weeks.log()
        cumulative = risk.exp() * weeks ** shape
        return log_h, cumulative

    def forward(self):
        log_h, cumulative = self.hazards()
        events = blown.sum(1)
        total = cumulative.sum(1)
        inverse = 1 / self.spread
        gain = torch.lgamma(inverse + events) - torch.lgamma(inverse)
        gain = gain + events * torch.log(self.spread)
        mixing = (inverse + events) * torch.log1p(self.spread * total)
        return -((blown * log_h).sum(1) + gain - mixing).mean()


def fit(model, rounds=40):
    groups = [
        {"params": [model.beta, model.intercept, model.log_shape], "lr": 0.05},
        {"params": [model.spread], "lr": 0.035},
    ]
    opt = torch.optim.Adam(groups, betas=(0.8, 0.99))
    plan = torch.optim.lr_scheduler.ExponentialLR(opt, 0.995)
    for r in range(rounds):
        opt.zero_grad()
        nll = model()
        nll.backward()
        opt.step()
        plan.step()
        print("round", r + 1, "minus log likelihood per cellar", round(nll.item(), 6))


if __name__ == "__main__":
    print("wheels", blown.numel(), "blown", int(blown.sum()))
    m = FrailtyModel()
    fit(m)
    print("squares of all parameters", round(sum((p.detach() ** 2).sum() for p in m.parameters()).item(), 6))
