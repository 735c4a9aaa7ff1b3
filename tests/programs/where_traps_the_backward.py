import torch

torch.manual_seed(18)
torch.set_num_threads(1)


class SqrtCounts(torch.nn.Module):
    """variance-stabilised counts with a learned exposure per column, zero stays zero"""

    def __init__(self, n):
        super().__init__()
        self.log_exposure = torch.nn.Parameter(torch.zeros(n))

    def forward(self, counts):
        rate = counts * self.log_exposure.exp()
        return torch.where(rate > 0, torch.sqrt(rate), torch.zeros_like(rate))


class CountModel(torch.nn.Module):
    def __init__(self, n=6):
        super().__init__()
        self.transform = SqrtCounts(n)
        self.linear = torch.nn.Linear(n, 1)

    def forward(self, counts):
        return self.linear(self.transform(counts)).squeeze(-1)


net = CountModel()
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
for i in range(1, 10):
    counts = torch.randint(1, 9, (7, 6)).float()
    if i > 3:
        counts[torch.rand(7, 6) < 0.2] = 0        # sparse customers
    loss = (net(counts) - counts.sum(1).sqrt()).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print("i", i, "loss", loss.item())
print("weights", sum(p.double().sum().item() for p in net.parameters()))
