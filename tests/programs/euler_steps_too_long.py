import torch
from torch import nn
torch.manual_seed(0); torch.set_num_threads(1)

class Field(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(3, 24); self.b = nn.Linear(24, 3)
    def forward(self, h):
        return self.b(torch.relu(self.a(h)))

def integrate(field, h, dt, n=40):
    for _ in range(n):
        h = h + dt * field(h)
    return h

f = Field(); opt = torch.optim.Adam(f.parameters(), lr=1e-3)
for step in range(1, 11):
    dt = 0.02 if step != 6 else 2e3
    x = torch.randn(8, 3)
    loss = nn.functional.smooth_l1_loss(integrate(f, x, dt), x.roll(1, 1))
    opt.zero_grad(); loss.backward(); opt.step()
    print(step, loss.item())
print("weights", sum(p.double().sum().item() for p in f.parameters()))
