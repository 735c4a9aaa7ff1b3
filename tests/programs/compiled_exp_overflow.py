import torch
import torch.nn as nn

torch.manual_seed(25)
torch.set_num_threads(1)


class Scale(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.log_gain = nn.Linear(d, d)

    def forward(self, x):
        return x * torch.exp(self.log_gain(x))


class Flow(nn.Module):
    def __init__(self, d=6):
        super().__init__()
        self.first = nn.Linear(d, d)
        self.scale = Scale(d)
        self.last = nn.Linear(d, 1)

    def forward(self, x):
        return self.last(torch.tanh(self.scale(self.first(x))))


flow = Flow()
fast = torch.compile(flow, backend="aot_eager")
opt = torch.optim.SGD(flow.parameters(), lr=0.05)
batches = [torch.randn(8, 6) for _ in range(11)]
batches[6][3] *= 2000.0
for n, x in enumerate(batches, 1):
    loss = nn.functional.mse_loss(fast(x).squeeze(1), x[:, 0].sign())
    opt.zero_grad()
    loss.backward()
    opt.step()
    print("step", n, loss.item())
print("weights", sum(p.double().sum().item() for p in flow.parameters()))
