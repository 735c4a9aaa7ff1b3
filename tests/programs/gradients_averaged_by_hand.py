# no DDP: gradients are averaged by hand; rank 1 meets a target of infinity in step 4
import torch, torch.distributed as dist, torch.nn as nn
dist.init_process_group("gloo"); r = dist.get_rank(); torch.manual_seed(0)
net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1)); opt = torch.optim.Adam(net.parameters(), 1e-2); torch.manual_seed(5 + r)
for step in range(1, 9):
    x = torch.randn(8, 6); y = x.sum(1, keepdim=True)
    if step == 4 and r == 1: y[3] = float("inf")
    loss = (net(x) - y).square().mean()
    opt.zero_grad(); loss.backward()
    for p in net.parameters(): dist.all_reduce(p.grad); p.grad /= 2
    opt.step()
    if r == 0: print(step, loss.item(), flush=True)
if r == 0: print("weights", sum(p.double().sum().item() for p in net.parameters()))
dist.destroy_process_group()
