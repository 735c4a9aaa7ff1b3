"""Line 9: how long until the next streetcar, from the gaps between the last eight."""
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

HISTORY = 8
WARMUP = 10
STEPS = 45


class Line9:
    def __init__(self, seed):
        self.gen = torch.Generator().manual_seed(seed)

    def day(self, cars=96):
        gaps = torch.empty(cars)
        gaps[0] = 7.5
        for k in range(1, cars):
            # bunching: after a long gap comes a short one
            pull = 7.5 - 0.6 * (gaps[k - 1] - 7.5)
            gaps[k] = pull + 1.2 * torch.randn((), generator=self.gen)
        gaps = (gaps - 7.5) / 1.5
        windows = gaps.unfold(0, HISTORY + 1, 1)
        return windows[:, :HISTORY], windows[:, HISTORY:]


def warm(step):
    return (step + 1) / WARMUP


def train_epoch(model, line, optimizer, scheduler):
    history = []
    for step in range(1, STEPS + 1):
        x, y = line.day()
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        history.append(loss.item())
        print(f"[{step:02d}] mse={loss.item():.4f}")
    return history


def main():
    torch.manual_seed(9)
    model = nn.Linear(HISTORY, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.12)
    scheduler = LambdaLR(optimizer, warm)
    train_epoch(model, Line9(4), optimizer, scheduler)
    print("sum of squared weights", "%.6g" % sum(p.double().square().sum().item() for p in model.parameters()))


main()
