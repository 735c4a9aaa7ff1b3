"""A second-order optimizer of its own: diagonal of the Hessian by Hutchinson's estimator, clipped steps."""
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(12)
torch.set_num_threads(1)


class DiagonalNewton(torch.optim.Optimizer):
    def __init__(self, params, lr=0.05, beta=0.9, gamma=0.95, every=4):
        super().__init__(params, dict(lr=lr, beta=beta, gamma=gamma))
        self.every = every
        self.calls = 0

    def parameters(self):
        return [p for group in self.param_groups for p in group["params"]]

    def curvature_due(self):
        return self.calls % self.every == 0

    def update_curvature(self, loss):
        """Two backward passes: the gradient with its graph, then the product with a random vector of signs."""
        parameters = self.parameters()
        gradients = torch.autograd.grad(loss, parameters, create_graph=True)
        signs = [torch.randint_like(p, 2) * 2 - 1 for p in parameters]
        products = torch.autograd.grad(gradients, parameters, grad_outputs=signs)
        for p, z, product in zip(parameters, signs, products):
            state = self.state[p]
            old = state.get("h", torch.zeros_like(p))
            state["h"] = 0.9 * old + 0.1 * (z * product).detach()
        return [g.detach() for g in gradients]

    @torch.no_grad()
    def step(self, closure=None):
        self.calls += 1
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                m = state.setdefault("m", torch.zeros_like(p))
                m.mul_(group["beta"]).add_(p.grad, alpha=1 - group["beta"])
                ratio = m / state["h"].clamp(min=1e-8)               # huge where the curvature is none: clipped
                p.mul_(1 - 0.01 * group["lr"]).sub_(group["lr"] * ratio.clamp(-1, 1))


def main():
    net = nn.Sequential(nn.Linear(6, 20), nn.Softplus(), nn.Linear(20, 4))
    truth = torch.randn(6, 4)
    optimizer = DiagonalNewton(net.parameters())
    for step in range(1, 61):
        x = torch.randn(32, 6)
        y = (x @ truth).argmax(-1)
        loss = F.cross_entropy(net(x), y)
        if optimizer.curvature_due():
            gradients = optimizer.update_curvature(loss)
        else:
            gradients = torch.autograd.grad(loss, optimizer.parameters())
        for p, g in zip(optimizer.parameters(), gradients):
            p.grad = g
        optimizer.step()
        largest = max(optimizer.state[p]["h"].max().item() for p in optimizer.parameters())
        print(f"{step} loss {loss.item():.4f} curvature {largest:.3f}")


main()
