import torch, torch.nn as nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4)).half()
master = [p.detach().float().clone().requires_grad_() for p in net.parameters()]
opt = torch.optim.Adam(master, 1e-3)
scale = 2.0**22
skipped = 0
for i in range(20):
    x = torch.randn(8, 8).half()
    l = nn.functional.cross_entropy(net(x).float(), torch.randint(0, 4, (8,)))
    (l * scale).backward()
    if any(not torch.isfinite(p.grad).all() for p in net.parameters()):
        scale /= 2
        skipped += 1
        net.zero_grad()
        continue
    for m, p in zip(master, net.parameters()):
        m.grad = p.grad.float() / scale
    opt.step()
    net.zero_grad()
    with torch.no_grad():
        for m, p in zip(master, net.parameters()):
            p.copy_(m)
print(l.item(), scale, skipped)
