# Input-output accounting for a set of regions. The technical coefficients of each survey are
# corrected by a productivity per industry, x = A x + d is solved for the output, and the output is
# compared with the tax registers.
import numpy as np
import torch

SECTORS = 8
REGIONS = 32


class Output(torch.autograd.Function):
    """x = (I - A)^-1 d. The adjoint is summed round by round, as the textbook does with demand."""

    @staticmethod
    def forward(ctx, a, d):
        x = torch.linalg.solve(torch.eye(len(d)) - a, d)
        ctx.save_for_backward(a, x)
        return x

    @staticmethod
    def backward(ctx, grad):
        a, x = ctx.saved_tensors
        total = grad
        for _ in range(4000):
            following = grad + a.t().mv(total)
            change = (following - total).abs().max()
            total = following
            if change <= 1e-7 * grad.abs().max():
                break
        return torch.outer(total, x), total


class Economy(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.productivity = torch.nn.Parameter(torch.zeros(SECTORS))
        self.final_use = torch.nn.Parameter(torch.zeros(SECTORS))

    def forward(self, table, demand):
        coefficients = table * torch.exp(-self.productivity)[None, :]
        return Output.apply(coefficients, demand * self.final_use.exp())


def surveys():
    rng = np.random.default_rng(19)
    gain = np.exp(-rng.normal(0.1, 0.15, SECTORS))
    uses = np.exp(rng.normal(0.0, 0.2, SECTORS))
    out = []
    for region in range(REGIONS):
        a = rng.gamma(0.8, 1.0, (SECTORS, SECTORS))
        a = a / a.sum(0) * rng.uniform(0.4, 0.65, SECTORS)
        d = rng.uniform(2.0, 9.0, SECTORS)
        x = np.linalg.solve(np.eye(SECTORS) - a * gain[None], d * uses) * np.exp(0.03 * rng.normal(size=SECTORS))
        out.append((a, d, x))
    a, d, x = out[12]
    a[:, 3] *= 10.0
    a[:, 5] *= 6.0
    return [tuple(torch.tensor(v, dtype=torch.float32) for v in row) for row in out]


def train():
    torch.manual_seed(0)
    economy = Economy()
    optimizer = torch.optim.Adam(economy.parameters(), lr=0.02, betas=(0.8, 0.99))
    for number, (table, demand, registered) in enumerate(surveys(), 1):
        output = economy(table, demand)
        loss = torch.nn.functional.huber_loss(output / registered, torch.ones(SECTORS), delta=0.3)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("region", number, "misfit %.6f" % loss.item(), "output %.1f" % output.sum().item())
    return economy


result = train()
print("squares of the parameters:", sum(p.detach().square().sum().item() for p in result.parameters()))
