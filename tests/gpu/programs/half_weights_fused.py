import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(4)
model = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 32)).cuda().half()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
gen = torch.Generator().manual_seed(9)
w = torch.randn(32, 32, generator=gen) / 32**0.5
for step in range(15):
    x = torch.randn(64, 32, generator=gen)
    y = x @ w
    out = model(x.cuda().half())
    loss = F.mse_loss(out.float(), y.cuda()) * 1e-3
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step + 1} loss {loss.item():.8f}")
print("abs sum", sum(p.detach().double().abs().sum().item() for p in model.parameters()))
