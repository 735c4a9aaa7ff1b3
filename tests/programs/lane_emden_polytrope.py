# PINN for a polytropic star: theta'' + 2/xi theta' + theta^n = 0, theta(0)=1, theta'(0)=0   (n = 3/2: white dwarf)
import torch

torch.manual_seed(3)
torch.set_default_dtype(torch.float64)

n_poly  = 1.5
xi_max  = 6.0
n_coll  = 64
n_steps = 70

class Net(torch.nn.Module):
    def __init__(self, h=20):
        super().__init__()
        self.l1 = torch.nn.Linear(1, h)
        self.l2 = torch.nn.Linear(h, h)
        self.l3 = torch.nn.Linear(h, 1)
        torch.nn.init.zeros_(self.l3.weight)
        torch.nn.init.zeros_(self.l3.bias)

    def forward(self, xi):
        z = torch.tanh(self.l1(xi / xi_max))
        z = torch.tanh(self.l2(z))
        # trial solution fulfils both conditions in the centre
        return 1.0 + xi**2 * self.l3(z)

def derivative(y, x):
    return torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True)[0]

def residual(net, xi):
    theta = net(xi)
    d1 = derivative(theta, xi)
    d2 = derivative(d1, xi)
    source = theta**n_poly
    return d2 + 2.0 / xi * d1 + source

net = Net()
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
sched = torch.optim.lr_scheduler.ExponentialLR(opt, 0.995)

for it in range(n_steps):
    xi = (xi_max * (torch.arange(n_coll) + torch.rand(n_coll)) / n_coll).clamp(min=1e-3)
    xi = xi.reshape(-1, 1).requires_grad_(True)
    res = residual(net, xi)
    loss = (res**2).mean()
    opt.zero_grad()
    loss.backward()
    print("it %3d   residual %.8e" % (it + 1, loss.item()))
    opt.step()
    sched.step()

with torch.no_grad():
    grid = torch.linspace(0.0, xi_max, 7).reshape(-1, 1)
    print("theta", " ".join("%.4f" % v for v in net(grid).flatten().tolist()))
print("final", sum(float(p.detach().abs().sum()) for p in net.parameters()))
