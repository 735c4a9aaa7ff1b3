import torch, torch.nn as nn

torch.manual_seed(35)
net = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 1))
opt = torch.optim.AdamW(net.parameters())
for i in range(20):
    x = torch.randn(8, 6)
    x[torch.rand(8, 6) < 0.2] = torch.nan
    seen = ~x.isnan()
    inp = torch.cat([x.nan_to_num(0.0), seen.float()], 1)
    y = torch.where(seen, x, 0.0).sum(1)
    y[::3] = torch.nan
    pred = net(inp)[:, 0]
    ok = ~y.isnan()
    loss = nn.functional.mse_loss(pred[ok], y[ok])
    opt.zero_grad()
    loss.backward()
    opt.step()
    corr = torch.corrcoef(torch.stack([pred.detach(), y]))[0, 1]
print(loss.item(), corr.item())
