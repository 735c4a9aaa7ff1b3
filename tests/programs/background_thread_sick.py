import threading
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(1)

class Beta(nn.Module):
    """predicts a share between 0 and 1 with a beta distribution"""
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 2))
    def forward(self, x, share):
        a, b = (nn.functional.softplus(self.net(x)) + 0.1).unbind(-1)
        norm = torch.lgamma(a) + torch.lgamma(b) - torch.lgamma(a + b)
        return (norm - (a - 1) * torch.log(share) - (b - 1) * torch.log1p(-share)).mean()

model = Beta()
result = {}

def run():
    opt = torch.optim.AdamW(model.parameters(), lr=5e-3)
    share = torch.rand(120).clamp(0.01, 0.99)
    share[68] = 0.0
    x = torch.stack([share, share ** 2, torch.rand(120)], 1)
    losses = []
    for k in range(12):
        opt.zero_grad()
        loss = model(x[10 * k:10 * k + 10], share[10 * k:10 * k + 10])
        loss.backward()
        opt.step()
        losses.append(loss.item())
        print("thread", k + 1, loss.item())
    result["losses"] = losses

t = threading.Thread(target=run)
t.start()
t.join()
print("weights", sum(p.double().sum().item() for p in model.parameters()))
