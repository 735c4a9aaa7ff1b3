import torch
import torch.nn as nn


class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(10, 24)
        self.b = nn.Linear(24, 1)

    def forward(self, x, mask):
        h = torch.relu(self.a(x)) * mask[:, None]
        pooled = h.sum(0) / mask.sum()
        return self.b(pooled)


torch.manual_seed(12)
model = Gate().cuda()
model.compile()
opt = torch.optim.Adam(model.parameters(), lr=2e-3)
for k in range(1, 19):
    x = torch.randn(20, 10, device="cuda")
    mask = (torch.rand(20, device="cuda") < 0.6).float()
    if k == 8:
        mask = mask * 0
    target = x.mean()
    loss = (model(x, mask) - target).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print("round", k, "loss", f"{loss.item():.5f}")
print("size", sum(p.detach().abs().sum().item() for p in model.parameters()))
