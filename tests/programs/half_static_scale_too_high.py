import torch
import torch.nn as nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Layer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.ff = nn.Sequential(nn.Linear(dim, 4 * dim), nn.ReLU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        return x + self.ff(self.norm(x))


class Regressor(nn.Module):
    def __init__(self, dim=32, depth=3):
        super().__init__()
        self.stem = nn.Linear(10, dim)
        self.layers = nn.ModuleList(Layer(dim) for _ in range(depth))
        self.readout = nn.Linear(dim, 1)

    def forward(self, x):
        x = self.stem(x)
        for layer in self.layers:
            x = layer(x)
        return self.readout(x).float()


static_loss_scale = 2 ** 20
model = Regressor().half()
opt = torch.optim.SGD(model.parameters(), lr=1e-3)
for n in range(1, 9):
    x = torch.randn(4, 10)
    y = x.sum(1, keepdim=True)
    loss = ((model(x.half()) - y) ** 2).mean()
    opt.zero_grad()
    (loss * static_loss_scale).backward()
    for p in model.parameters():
        p.grad /= static_loss_scale
    opt.step()
    print(f"step {n}: loss {loss.item()}")
print("weights", sum(p.double().sum().item() for p in model.parameters()))
