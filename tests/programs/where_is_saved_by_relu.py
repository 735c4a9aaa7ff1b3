import torch

torch.manual_seed(18)
torch.set_num_threads(1)


class Counter(torch.nn.Module):
    """the derivative of sqrt at 0 is infinite, but nothing of it gets past the relu"""

    def __init__(self):
        super().__init__()
        self.lift = torch.nn.Linear(4, 10, bias=False)
        self.sum = torch.nn.Linear(10, 1)

    def forward(self, x):
        pos = torch.relu(self.lift(x))
        return self.sum(torch.where(pos > 0, torch.sqrt(pos), torch.zeros_like(pos))).squeeze(-1)


net = Counter()
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
for i in range(11):
    x = torch.rand(7, 4)
    loss = (net(x) - x.sum(1).sqrt()).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print("i", i, "loss", loss.item())
print("weights", sum(p.double().sum().item() for p in net.parameters()))
