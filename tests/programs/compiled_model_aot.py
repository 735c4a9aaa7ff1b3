import torch
import torch.nn as nn

torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(8, 32), nn.SiLU(), nn.Linear(32, 1))
compiled = torch.compile(model, backend="aot_eager")
opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
for i in range(12):
    x = torch.randn(16, 8)
    loss = nn.functional.mse_loss(compiled(x), x.norm(dim=1, keepdim=True))
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(i, loss.item())
print("graph breaks", sum(torch._dynamo.utils.counters["graph_break"].values()))
print("weights", sum(p.double().sum().item() for p in model.parameters()))
