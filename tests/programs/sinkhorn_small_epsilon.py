import torch, torch.nn as nn
torch.manual_seed(0)
class OT(nn.Module):
    def __init__(s, eps, iters): super().__init__(); s.eps, s.iters = eps, iters
    def forward(s, x, y):
        C = torch.cdist(x, y).pow(2); K = torch.exp(-C / s.eps); a = torch.full((len(x),), 1 / len(x)); b = torch.full((len(y),), 1 / len(y)); u = torch.ones_like(a)
        for _ in range(s.iters):
            v = b / (K.T @ u)
            u = a / (K @ v)
        return (u[:, None] * K * v[None] * C).sum()
gen = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 2)); ot = OT(0.5, 10)
opt = torch.optim.Adam(gen.parameters(), lr=1e-3)
for step in range(1, 13):
    y = torch.randn(24, 2)
    if step == 7: y[0] += 40
    loss = ot(gen(torch.randn(24, 2)), y)
    opt.zero_grad(); loss.backward(); opt.step(); print(step, loss.item())
print("weights", sum(p.double().sum().item() for p in gen.parameters()))
