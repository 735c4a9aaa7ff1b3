import torch, torch.nn as nn
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4)); dec = nn.Linear(4, 6)
opt = torch.optim.Adam([*net.parameters(), *dec.parameters()], 1e-2)
for step in range(1, 13):
    x = torch.randn(8, 6)
    u = torch.rand(8, 4)
    if step == 5: u[2, 1] = 0.0          # happens once in 2**24
    g = -torch.log(-torch.log(u))
    z = ((net(x) + g) / 0.5).softmax(-1)
    loss = (dec(z) - x).square().mean()
    opt.zero_grad(); loss.backward(); opt.step(); print(step, loss.item())
