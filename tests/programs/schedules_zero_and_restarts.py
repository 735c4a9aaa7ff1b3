import math
import torch
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts, LambdaLR, SequentialLR

torch.manual_seed(0)
torch.set_num_threads(1)
net = torch.nn.Sequential(torch.nn.Linear(10, 32), torch.nn.PReLU(), torch.nn.Linear(32, 2))
opt = torch.optim.AdamW(net.parameters(), lr=2e-2)
# the very first update has rate 0
warmup = LambdaLR(opt, lambda s: s / 5)
cosine = CosineAnnealingWarmRestarts(opt, T_0=6, T_mult=2)
sched = SequentialLR(opt, [warmup, cosine], milestones=[5])
for step in range(40):
    x = torch.randn(32, 10)
    loss = torch.nn.functional.cross_entropy(net(x), (x[:, 0] * x[:, 1] > 0).long())
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(f"{step:2d} lr {opt.param_groups[0]['lr']:.6f} loss {loss.item()!r}")
    sched.step()
print("weights", sum(p.double().sum().item() for p in net.parameters()), math.pi)
