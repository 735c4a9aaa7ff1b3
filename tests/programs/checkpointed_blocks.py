import torch
import torch.nn as nn
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)
torch.set_num_threads(1)


class Block(nn.Module):
    calls = 0

    def __init__(self, d):
        super().__init__()
        self.ln, self.ff, self.drop = nn.LayerNorm(d), nn.Linear(d, d), nn.Dropout(0.1)

    def forward(self, x):
        Block.calls += 1
        return x + self.drop(torch.relu(self.ff(self.ln(x))))


class Net(nn.Module):
    def __init__(self, d=24):
        super().__init__()
        self.inp = nn.Linear(4, d)
        self.blocks = nn.ModuleList(Block(d) for _ in range(4))
        self.out = nn.Linear(d, 1)

    def forward(self, x):
        x = self.inp(x)
        for i, block in enumerate(self.blocks):
            x = checkpoint(block, x, use_reentrant=i % 2 == 0)
        return self.out(x)


net = Net()
opt = torch.optim.AdamW(net.parameters(), lr=3e-3)
for i in range(10):
    x = torch.randn(32, 4)
    loss = nn.functional.mse_loss(net(x), x.prod(1, keepdim=True))
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(i, loss.item())
print("block calls", Block.calls)
print("weights", sum(p.double().sum().item() for p in net.parameters()))
