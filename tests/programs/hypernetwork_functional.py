"""A hypernetwork writes the weights of a small net for each task; torch.func runs that net without owning them."""
import torch
from torch import nn
from torch.func import functional_call, vmap

torch.manual_seed(20)
torch.set_num_threads(1)

TASKS = 6


class Target(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(1, 10)
        self.b = nn.Linear(10, 1)

    def forward(self, x):
        return self.b(torch.sin(self.a(x)))


class HyperNetwork(nn.Module):
    def __init__(self, shapes):
        super().__init__()
        self.shapes = shapes
        total = sum(shape.numel() for shape in shapes.values())
        self.trunk = nn.Sequential(nn.Linear(5, 32), nn.Tanh(), nn.Linear(32, total))

    def forward(self, code):
        flat = self.trunk(code)
        sizes = [shape.numel() for shape in self.shapes.values()]
        return {name: part.view(shape) for (name, shape), part in zip(self.shapes.items(), flat.split(sizes))}


def main():
    with torch.device("meta"):
        target = Target()                                    # holds no numbers at all
    hyper = HyperNetwork({name: p.shape for name, p in target.named_parameters()})
    codes = nn.Parameter(0.1 * torch.randn(TASKS, 5))
    slow = torch.optim.Adam(hyper.parameters(), lr=3e-3)
    fast = torch.optim.SGD([codes], lr=0.05)
    phase = torch.linspace(0, 3, TASKS).view(TASKS, 1, 1)

    def one_task(code, x, y):
        prediction = functional_call(target, hyper(code), (x,))
        return (prediction - y).pow(2).mean()

    for step in range(1, 51):
        x = torch.rand(TASKS, 12, 1) * 4 - 2
        y = torch.sin(2 * x + phase)
        losses = vmap(one_task)(codes, x, y)
        # worst case over the tasks, softly; the logarithm makes the loss negative in time
        loss = torch.logsumexp(4 * losses, dim=0) / 4 + torch.log(losses.mean())
        slow.zero_grad()
        fast.zero_grad()
        loss.backward()
        slow.step()
        if step % 2 == 0:
            fast.step()
        print(f"step {step} loss {loss.item():.4f} worst {losses.max().item():.4f}")


main()
