import copy

import torch
import torch.nn.functional as F

torch.manual_seed(5)

N = 210
cane = torch.randn(N, 7)
skill = cane @ torch.tensor([0.9, -0.4, 0.0, 0.7, 0.2, -0.6, 0.1]) + 0.02 * torch.randn(N)
grade = skill / 4 + 0.5           # between 0 and 1 for nearly all reeds
train_x, train_y = cane[:168], grade[:168]
val_x, val_y = cane[168:], grade[168:]


class ReedScorer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = torch.nn.Linear(7, 24)
        self.mid = torch.nn.Linear(24, 24)
        self.out = torch.nn.Linear(24, 1)
        self.width = torch.nn.Parameter(torch.tensor(-1.0))

    def forward(self, x):
        h = torch.tanh(self.inp(x))
        h = h + torch.tanh(self.mid(h))
        return self.out(h).squeeze(-1)

    def loss(self, x, y):
        # Laplace likelihood: below zero as soon as the fit is tight
        miss = (self(x) - y).abs()
        return (miss * torch.exp(-self.width) + self.width).mean()


def one_epoch(previous, lr, number, counter):
    model = copy.deepcopy(previous)
    # the frozen layer alternates from epoch to epoch
    for p in model.mid.parameters():
        p.requires_grad_(number % 2 == 0)
    opt = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=lr)
    order = torch.randperm(len(train_x))
    for rows in order.split(24):
        counter += 1
        loss = model.loss(train_x[rows], train_y[rows])
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"{counter:3d}  epoch {number}  nll {loss.item():+.4f}")
    return model, counter


def val(model):
    with torch.no_grad():
        return model.loss(val_x, val_y).item()


best, best_score = ReedScorer(), float("inf")
count = 0
for number, lr in enumerate([0.03, 0.03, 0.1, 0.01, 0.01, 0.003]):
    candidate, count = one_epoch(best, lr, number, count)
    score = val(candidate)
    if score < best_score:
        best, best_score = candidate, score
        print(f"     kept, validation {score:+.4f}")
    else:
        print(f"     thrown away, validation {score:+.4f}")
    del candidate

print("sum of squared weights", sum(float((p.detach() ** 2).sum()) for p in best.parameters()))
