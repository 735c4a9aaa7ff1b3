import torch
import torch.nn as nn
from torch.func import functional_call, grad_and_value

torch.manual_seed(21)

LEVELS = [          # name, lowest operand, highest operand, number of exercises in the level
    ("one digit", 1, 9, 7),
    ("small change", 2, 14, 8),
    ("natural numbers", 0, 11, 12),
    ("with debts", -6, 11, 10),
]


class NacCell(nn.Module):
    def __init__(self, n_in, n_out):
        super().__init__()
        self.w_hat = nn.Parameter(torch.randn(n_out, n_in) * 0.4)
        self.m_hat = nn.Parameter(torch.randn(n_out, n_in) * 0.4)

    def weight(self):
        return torch.tanh(self.w_hat) * torch.sigmoid(self.m_hat)

    def forward(self, x):
        return nn.functional.linear(x, self.weight())


class Nalu(nn.Module):
    """Adds on one road, multiplies on the other, and a gate that chooses (Trask et al. 2018)."""

    def __init__(self, n_in, n_out):
        super().__init__()
        self.add = NacCell(n_in, n_out)
        self.mul = NacCell(n_in, n_out)
        self.gate = nn.Linear(n_in, n_out)

    def forward(self, x):
        g = torch.sigmoid(self.gate(x / 10))
        magnitude = x.abs().log()
        return g * self.add(x) + (1 - g) * self.mul(magnitude).exp()


class Pupil(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = Nalu(2, 6)
        self.answer = nn.Linear(6, 2)

    def forward(self, x):
        return self.answer(self.cell(x))


def exercises(low, high, n=48):
    ab = torch.randint(low, high + 1, (n, 2)).float()
    return ab, torch.stack([ab.sum(1), ab.prod(1) / 10], dim=1)


pupil = Pupil()
params = {k: v.detach().clone() for k, v in pupil.named_parameters()}


def objective(p, ab, target):
    return nn.functional.huber_loss(functional_call(pupil, p, (ab,)), target)


learn = grad_and_value(objective)
speed = {k: torch.zeros_like(v) for k, v in params.items()}
lesson = 0
for level, low, high, count in LEVELS:
    print(f"-- {level}: {low} to {high}")
    for _ in range(count):
        lesson += 1
        grads, loss = learn(params, *exercises(low, high))
        speed = {k: 0.7 * speed[k] + grads[k] for k in params}
        params = {k: params[k] - 0.02 * speed[k] for k in params}
        print(f"lesson {lesson:2d}  huber {loss.item():.4f}")

print("sum of |w| =", round(sum(v.abs().sum().item() for v in params.values()), 5))
