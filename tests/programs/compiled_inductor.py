import torch
import torch.nn as nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 1)

    def forward(self, x):
        return self.down(nn.functional.gelu(self.up(x)))


model = Net()
fast = torch.compile(model)
opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
for i in range(10):
    x = torch.randn(16, 8)
    loss = nn.functional.mse_loss(fast(x), x.amax(1, keepdim=True))
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(i, loss.item())
print("weights", sum(p.double().sum().item() for p in model.parameters()))
