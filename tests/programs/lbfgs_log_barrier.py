import torch
torch.set_num_threads(1); torch.manual_seed(3)

# portfolio weights, log barrier keeps them positive ... if the line search does
class Portfolio(torch.nn.Module):
    def __init__(self, n):
        super().__init__()
        self.w = torch.nn.Parameter(torch.full((n,), 1.0 / n))
    def forward(self, mean, cov, mu):
        risk = self.w @ cov @ self.w - 0.5 * self.w @ mean
        barrier = -torch.log(self.w).sum()
        return risk + mu * barrier + 10 * (self.w.sum() - 1) ** 2

n = 5
A = torch.randn(n, n)
cov, mean = A @ A.T / n, torch.tensor([0.1, 0.4, -2.5, 0.2, 0.3])
model = Portfolio(n)
opt = torch.optim.LBFGS(model.parameters(), lr=1.0, max_iter=4, history_size=5)

def closure():
    opt.zero_grad()
    value = model(mean, cov, mu)
    value.backward()
    return value

for k, mu in enumerate([1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0003]):
    value = opt.step(closure)
    print(k + 1, mu, value.item(), model.w.tolist())
print("w", model.w.double().sum().item())
