import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
WARMUP, TOTAL, PEAK = 80, 160, 3e5        # 0.3, but the config is read as micro-units
net = nn.Sequential(nn.Linear(10, 16), nn.Tanh(), nn.Linear(16, 1))
opt = torch.optim.SGD(net.parameters(), lr=PEAK)
sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / WARMUP) ** 6)
w = torch.randn(10, 1)
for step in range(TOTAL):
    x = torch.randn(32, 10)
    loss = F.l1_loss(net(x), 3 * torch.sin(x @ w))
    opt.zero_grad()
    loss.backward()
    opt.step()
    sched.step()
    print(step + 1, loss.item())
print("weights", sum(p.double().sum().item() for p in net.parameters()))
