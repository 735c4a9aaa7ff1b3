"""A ropeway cable over a support saddle: y'' = load, y(0) = y(1) = 0, and it may not sag into the saddle.

PINN with L-BFGS. The weight of the contact term follows the gradients (Wang, Teng, Perdikaris 2021).
"""
import torch

torch.manual_seed(17)
torch.set_default_dtype(torch.float32)

LOAD = 2.0


class Cable(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(
            torch.nn.Linear(1, 16), torch.nn.Tanh(), torch.nn.Linear(16, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)
        )
        with torch.no_grad():
            self.body[-1].bias.fill_(-1.9)

    def forward(self, x):
        return x * (1 - x) * self.body(x)      # the ends are held


def saddle(x):
    return -0.28 - 1.5 * (x - 0.5) ** 2


cable = Cable()
params = list(cable.parameters())
lbfgs = torch.optim.LBFGS(params, lr=0.04, max_iter=3, history_size=10, line_search_fn=None)
rng = torch.Generator().manual_seed(1)
lam = torch.tensor(1.0)


def terms(x):
    x = x.requires_grad_(True)
    y = cable(x)
    (dy,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    (ddy,) = torch.autograd.grad(dy.sum(), x, create_graph=True)
    # in contact the saddle carries the cable
    free = (y > saddle(x)).float()
    equilibrium = (free * (ddy - LOAD)).square().mean()
    contact = torch.relu(saddle(x) - y).square().mean()
    return equilibrium, contact


def flat(loss):
    grads = torch.autograd.grad(loss, params, retain_graph=True, allow_unused=True)
    return torch.cat([g.abs().flatten() for g in grads if g is not None])


for sweep in range(1, 41):
    x = torch.rand(64, 1, generator=rng)
    equilibrium, contact = terms(x)
    wanted = flat(equilibrium).max() / flat(contact).mean()
    lam = (0.9 * lam + 0.1 * wanted).detach()

    def closure():
        lbfgs.zero_grad()
        eq, co = terms(x.detach())
        total = eq + lam * co
        total.backward()
        return total

    loss = lbfgs.step(closure)
    print(f"sweep {sweep:2d} | loss {loss.item():.6f} | equilibrium {equilibrium.item():.5f} | contact {contact.item():.2e}")

print("norm of everything", torch.cat([p.detach().flatten() for p in params]).norm().item())
