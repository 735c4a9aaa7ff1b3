import torch
from torch import nn, optim
from torch.distributions import MultivariateNormal


class ExpLinear(nn.Module):
    """z = x exp(W)^T + b with log|det| = tr W, so the layer can always be inverted."""

    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(0.02 * torch.randn(dim, dim))
        self.bias = nn.Parameter(torch.zeros(dim))

    def forward(self, x):
        m = torch.linalg.matrix_exp(self.weight)
        return x @ m.T + self.bias, self.weight.diagonal().sum().expand(len(x))


class Leaky(nn.Module):
    slope = 0.6

    def forward(self, x):
        low = x < 0
        return torch.where(low, self.slope * x, x), low.sum(1) * torch.log(torch.tensor(self.slope))


class WineFlow(nn.Module):
    def __init__(self, dim, depth=3):
        super().__init__()
        parts = []
        for i in range(depth):
            parts.append(ExpLinear(dim))
            if i + 1 < depth:
                parts.append(Leaky())
        self.parts = nn.ModuleList(parts)
        self.register_buffer("zero", torch.zeros(dim))
        self.register_buffer("eye", torch.eye(dim))

    def log_prob(self, x):
        logdet = 0.0
        for part in self.parts:
            x, ld = part(x)
            logdet = logdet + ld
        return MultivariateNormal(self.zero, self.eye, validate_args=False).log_prob(x) + logdet


def chemistry(n=960):
    """fixed acidity, volatile acidity, sugar, chlorides, free SO2, density, pH, alcohol (standardised)"""
    mix = torch.randn(8, 8) * 0.4 + torch.eye(8)
    raw = torch.randn(n, 8) @ mix.T
    raw[:, 2] = torch.nn.functional.softplus(raw[:, 2] * 1.5)
    raw[:, 4] = raw[:, 4].abs() ** 0.8
    return (raw - raw.mean(0)) / raw.std(0)


def main(epochs=3, batch=80):
    torch.manual_seed(2009)
    x = chemistry()
    flow = WineFlow(8)
    opt = optim.SGD(flow.parameters(), lr=2e-4, momentum=0.5)
    # every step a little bolder than the last
    bolder = optim.lr_scheduler.LambdaLR(opt, lambda s: 1.4 ** s)
    step = 0
    for epoch in range(epochs):
        for chunk in x[torch.randperm(len(x))].split(batch):
            step += 1
            nll = -flow.log_prob(chunk).mean()
            opt.zero_grad()
            nll.backward()
            opt.step()
            bolder.step()
            print(f"epoch {epoch} step {step:2d} nll {nll.item():.4f}")
    return flow


if __name__ == "__main__":
    flow = main()
    print("weights squared, total:", sum(p.detach().pow(2).sum().item() for p in flow.parameters()))
