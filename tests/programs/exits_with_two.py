import sys

import torch
import torch.nn as nn


def main() -> int:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    budget = 10
    for step in range(100):
        if step >= budget:
            print("out of budget")
            return 2
        x = torch.randn(12, 3)
        loss = nn.functional.l1_loss(model(x), x.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(step, loss.item())
    return 0


if __name__ == "__main__":
    sys.exit(main())
