import torch
import torch.nn as nn

torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=2.5)
for epoch in range(20):
    x = torch.randn(16, 8)
    y = x.sum(1, keepdim=True)
    error = model(x) - y
    loss = (error ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"epoch {epoch + 1} loss {loss.item():.6g}")
print("weights", sum(p.double().sum().item() for p in model.parameters()))
