import torch

torch.set_num_threads(1)
torch.manual_seed(0)
torch.set_default_dtype(torch.float64)

x = torch.linspace(-3, 3, 50)
y = 1.7 * torch.exp(-0.5 * ((x - 0.6) / 0.8) ** 2) + 0.02 * torch.randn(50)


class Bell(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Parameter(torch.tensor(1.0))
        self.m = torch.nn.Parameter(torch.tensor(0.0))
        self.s = torch.nn.Parameter(torch.tensor(1.5))

    def forward(self, x):
        return self.a * torch.exp(-0.5 * ((x - self.m) / self.s) ** 2)


bell = Bell()
lbfgs = torch.optim.LBFGS(bell.parameters(), lr=0.8, max_iter=6, line_search_fn="strong_wolfe")
evaluations = 0


def closure():
    global evaluations
    evaluations += 1
    lbfgs.zero_grad()
    loss = (bell(x) - y).square().sum()
    loss.backward()
    return loss


for outer in range(5):
    loss = lbfgs.step(closure)
    print(f"outer {outer} loss {loss.item()!r} after {evaluations} evaluations")
print(bell.a.item(), bell.m.item(), bell.s.item())
