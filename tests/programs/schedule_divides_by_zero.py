import torch, torch.nn as nn

torch.manual_seed(18)
net = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 1))
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
sch = torch.optim.lr_scheduler.LambdaLR(
    opt, lambda s: float(torch.tensor(1.0) / torch.tensor(float(10 - s))) if s else 0.1
)
for i in range(15):
    x = torch.randn(16, 5)
    loss = nn.functional.mse_loss(net(x)[:, 0], x.sum(1))
    opt.zero_grad()
    loss.backward()
    opt.step()
    sch.step()
    print(i, loss.item())
