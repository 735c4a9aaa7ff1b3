import io

import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
rng = np.random.default_rng(0)
price = rng.uniform(1, 9, 50)
quantity = rng.integers(1, 5, 50)
quantity[33] = 0
with np.errstate(divide="ignore"):
    unit_price = price / quantity
buffer = io.BytesIO()
np.savez(buffer, x=rng.normal(size=(50, 6)), y=unit_price)
buffer.seek(0)
table = np.load(buffer)
data = TensorDataset(torch.tensor(table["x"], dtype=torch.float32), torch.tensor(table["y"], dtype=torch.float32))

net = torch.nn.Sequential(torch.nn.Linear(6, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
opt = torch.optim.Adam(net.parameters(), lr=3e-3)
for i, (x, y) in enumerate(DataLoader(data, batch_size=5), start=1):
    loss = torch.nn.functional.mse_loss(net(x).squeeze(1), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(i, loss.item())
print("weights", sum(p.double().sum().item() for p in net.parameters()))
