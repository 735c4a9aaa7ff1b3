import torch
import torch.nn as nn

torch.manual_seed(10)
torch.set_num_threads(1)


class Residual(nn.Module):
    def __init__(self, width, gain):
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.gain = gain

    def forward(self, x):
        return x + self.gain * self.down(torch.relu(self.up(x)))


class Tower(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.inp = nn.Linear(8, width)
        self.layers = nn.ModuleList([Residual(width, g) for g in (1.0, 4.0, 3000.0, 1.0)])
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        x = self.inp(x)
        for layer in self.layers:
            x = layer(x)
        return self.out(torch.nn.functional.layer_norm(x, x.shape[-1:]))


model = Tower().half()
masters = [p.detach().float().requires_grad_(True) for p in model.parameters()]
optimizer = torch.optim.SGD(masters, lr=1e-3)
scale = 128.0
for step in range(8):
    x = torch.randn(8, 8) * (1 if step < 2 else 40)      # raw sensor units from the third file on
    y = x.mean(1, keepdim=True).half()
    loss = (model(x.half()) - y).float().pow(2).mean()
    for p in model.parameters():
        p.grad = None
    (loss * scale).backward()
    for m, p in zip(masters, model.parameters()):
        m.grad = p.grad.float() / scale
    optimizer.step()
    with torch.no_grad():
        for m, p in zip(masters, model.parameters()):
            p.copy_(m)
    print("step", step + 1, "loss", loss.item())
print("masters", sum(m.double().sum().item() for m in masters))
