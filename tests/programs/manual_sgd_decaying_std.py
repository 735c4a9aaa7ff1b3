import torch
import torch.nn as nn

torch.set_num_threads(1)
torch.manual_seed(19)


class Whiten(nn.Module):
    def forward(self, h):
        return (h - h.mean(0)) / h.std(0)


class AutoEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Linear(8, 4)
        self.white = Whiten()
        self.dec = nn.Linear(4, 8)

    def forward(self, x):
        return self.dec(self.white(torch.relu(self.enc(x))))


def sgd(params, lr):
    with torch.no_grad():
        for p in params:
            p.add_(p.grad, alpha=-lr)
            p.grad.zero_()


ae = AutoEncoder()
with torch.no_grad():
    ae.enc.bias[2] = -0.4
data = torch.randn(70, 8)
data[30:] *= 0.1      # second recording session, other gain
for epoch in range(2):
    for i, x in enumerate(data.split(10)):
        loss = (ae(x) - x).square().mean()
        loss.backward()
        sgd(ae.parameters(), 0.05)
        print("epoch", epoch, "batch", i, "loss", loss.item())
print("weights", sum(p.double().sum().item() for p in ae.parameters()))
