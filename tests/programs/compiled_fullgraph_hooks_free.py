"""model.compile(fullgraph=True): any graph break is an error. Also counts compilations."""
import torch
from torch import nn


class Gated(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(d, 2 * d), nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

    def forward(self, x):
        return x + self.c(torch.nn.functional.silu(self.a(x)) * self.b(x))


frames = []


def counting_backend(gm, example_inputs):
    frames.append(len(list(gm.graph.nodes)))
    return gm.forward


torch.manual_seed(9)
torch.set_num_threads(1)
net = nn.Sequential(Gated(), Gated(), nn.Linear(16, 4))
opt = torch.optim.SGD(net.parameters(), lr=0.05)
net.compile(backend=counting_backend, fullgraph=True)
for step in range(10):
    x = torch.randn(8, 16)
    loss = nn.functional.cross_entropy(net(x), x[:, :4].argmax(1))
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(step, loss.item())
print("compilations", len(frames), "nodes", frames)
print("weights", sum(p.double().sum().item() for p in net.parameters()))
