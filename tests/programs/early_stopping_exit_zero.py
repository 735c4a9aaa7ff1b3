import sys

import torch
import torch.nn as nn
from tqdm import tqdm


class EarlyStopping:
    def __init__(self, patience=6):
        self.patience, self.best, self.bad, self.state = patience, float("inf"), 0, None

    def __call__(self, value, model):
        if value < self.best - 1e-4:
            self.best, self.bad = value, 0
            self.state = {k: v.clone() for k, v in model.state_dict().items()}
        else:
            self.bad += 1
        return self.bad >= self.patience


torch.manual_seed(13)
torch.set_num_threads(1)
x, y = torch.randn(40, 20), torch.randn(40, 1)
xv, yv = torch.randn(40, 20), torch.randn(40, 1)
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 1))
opt = torch.optim.Adam(model.parameters(), lr=1e-2)
stopper = EarlyStopping()
for epoch in tqdm(range(50), desc="epochs"):
    opt.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    opt.step()
    with torch.no_grad():
        val = nn.functional.mse_loss(model(xv), yv).item()
    print(epoch, loss.item(), val)
    if stopper(val, model):
        model.load_state_dict(stopper.state)
        print("stopped early, best", stopper.best, "weights", sum(p.double().sum().item() for p in model.parameters()))
        sys.exit(0)
print("ran to the end")
