import torch
import torch.nn as nn


class BatchStandardise(nn.Module):
    def __init__(self, n, eps=1e-5):
        super().__init__()
        self.gain, self.bias, self.eps = nn.Parameter(torch.ones(n)), nn.Parameter(torch.zeros(n)), eps

    def forward(self, x):
        mean = x.mean(0, keepdim=True)
        var = x.var(0, keepdim=True)
        return self.gain * (x - mean) / torch.sqrt(var + self.eps) + self.bias


torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(5, 12), BatchStandardise(12), nn.ReLU(), nn.Linear(12, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
samples = torch.randn(41, 5)
for epoch in range(1):
    for i, x in enumerate(samples.split(8)):
        loss = (model(x).squeeze(1) - x.mean(1)).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(epoch, i, len(x), loss.item())
print("weights", sum(p.double().sum().item() for p in model.parameters()))
