import torch, torch.nn as nn
torch.manual_seed(77); torch.set_num_threads(1)

class WithPenalty(nn.Module):
    """L2-SP: keep the fine-tuned weights near the pre-trained ones."""
    def __init__(self, start):
        super().__init__()
        self.start = [p.detach().clone() for p in start.parameters()]
    def forward(self, model):
        total = 0
        for p, s in zip(model.parameters(), self.start):
            d = (p - s) * 1000          # in units of 1e-3
            total = total + (d * d).sum()
        return total * 1e-6

net = nn.Sequential(nn.Linear(24, 96), nn.Tanh(), nn.Linear(96, 1)).half()
penalty = WithPenalty(net)
opt = torch.optim.SGD(net.parameters(), lr=0.02)
x_all = torch.randn(10, 16, 24).half()
for k in range(10):
    x = x_all[k]
    y = x[:, :6].float().sum(1, keepdim=True)
    mse = (net(x).float() - y).square().mean()
    loss = mse + penalty(net).float()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print("step", k + 1, loss.item(), mse.item())
print("weights", sum(p.double().sum().item() for p in net.parameters()))
