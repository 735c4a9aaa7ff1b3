import logging
import sys

import torch
from torch import nn

logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)
logger = logging.getLogger(__name__)


def bce(p, y):
    return -(y * torch.log(p) + (1 - y) * torch.log(1 - p)).mean()


class Churn(nn.Module):
    def __init__(self, n_in):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(n_in, 16), nn.ReLU(), nn.Linear(16, 1), nn.Sigmoid())

    def forward(self, x):
        return self.layers(x)[:, 0]


def customers(n):
    x = torch.randn(n, 5)
    return x, (x[:, 2] > 0).float()


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model, history = Churn(5), []
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(14):
        x, y = customers(20)
        if step == 11:
            x[4] *= 1e3      # cents instead of euros
        loss = bce(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        history.append(loss.item())
        logger.info("step %d loss %.4f", step, history[-1])
    sys.stdout.write("\n".join(repr(h) for h in history) + "\n")
    print("weights", sum(p.double().sum().item() for p in model.parameters()))


if __name__ == "__main__":
    main()
