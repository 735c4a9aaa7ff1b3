"""bfloat16 model, float32 master copies in the optimizer (Apex O2 by hand)."""
import torch
import torch.nn as nn


class MasterWeights:
    def __init__(self, module):
        self.low = [p for p in module.parameters() if p.requires_grad]
        self.high = [p.detach().clone().float().requires_grad_() for p in self.low]

    def take_gradients(self):
        for lo, hi in zip(self.low, self.high):
            hi.grad = None if lo.grad is None else lo.grad.float()
            lo.grad = None

    @torch.no_grad()
    def write_back(self):
        for lo, hi in zip(self.low, self.high):
            lo.copy_(hi)


torch.manual_seed(2)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1)).to(torch.bfloat16)
master = MasterWeights(model)
opt = torch.optim.AdamW(master.high, lr=2e-3)
for i in range(15):
    x = torch.randn(32, 10)
    y = (x[:, :1] * 2 - x[:, 1:2]).clamp(-3, 3)
    loss = nn.functional.mse_loss(model(x.bfloat16()).float(), y)
    loss.backward()
    master.take_gradients()
    torch.nn.utils.clip_grad_norm_(master.high, 1.0)
    opt.step()
    master.write_back()
    print(i, loss.item())
print("master sum", sum(p.double().sum().item() for p in master.high))
