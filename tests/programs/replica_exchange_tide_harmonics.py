import copy, math
import torch
import torch.nn as nn

"""
Replica exchange Langevin for the harmonic constants of a tide gauge.
Four ladders rungs, each its own network copy and its own Langevin optimizer;
neighbours swap their states with the Metropolis rule.
"""

class Langevin(torch.optim.Optimizer):
    def __init__(self, params, lr, temperature, generator):
        super().__init__(params, {'lr': lr, 'temperature': temperature})
        self.generator = generator

    @torch.no_grad()
    def step(self):
        for g in self.param_groups:
            for p in g['params']:
                noise = torch.randn(p.shape, generator=self.generator)
                p.sub_(g['lr'] * p.grad).add_(noise * math.sqrt(2 * g['lr'] * g['temperature']))


class Tide(nn.Module):
    # M2, S2, K1, O1 in cycles per hour
    speeds = torch.tensor([0.0805114, 0.0833333, 0.0417807, 0.0387307])

    def __init__(self):
        super().__init__()
        self.amp = nn.Parameter(torch.randn(4) * 0.3)
        self.phase = nn.Parameter(torch.randn(4))
        self.mean = nn.Parameter(torch.zeros(()))

    def forward(self, hours):
        arg = 2 * math.pi * self.speeds * hours[:, None] + self.phase
        return self.mean + (self.amp * arg.cos()).sum(-1)


torch.manual_seed(21)
gen = torch.Generator().manual_seed(22)
hours = torch.arange(0., 360., 1.)
with torch.no_grad():
    gauge = Tide()
    gauge.amp.copy_(torch.tensor([1.9, 0.6, 0.4, 0.3]))
    level = 2.5 + gauge(hours) + 0.05 * torch.randn(360, generator=gen)

ladder = [1., 30., 900., 27000.]
start = Tide()
rungs = [copy.deepcopy(start) for _ in ladder]
samplers = [Langevin(r.parameters(), lr=2e-6, temperature=T, generator=gen)
            for r, T in zip(rungs, ladder)]

def energy(net):
    return ((net(hours) - level) ** 2).sum() / (2 * 0.05 ** 2)

swaps = 0
for sweep in range(1, 71):
    energies = []
    for net, sampler in zip(rungs, samplers):
        sampler.zero_grad()
        e = energy(net)
        e.backward()
        sampler.step()
        energies.append(e.detach())
    if sweep % 5 == 0:
        with torch.no_grad():
            now = torch.stack([energy(r) for r in rungs])
            beta = 1 / torch.tensor(ladder)
            ratio = torch.exp((beta[:-1] - beta[1:]) * (now[:-1] - now[1:]))
            accept = torch.rand(3, generator=gen) < ratio
            for i in torch.nonzero(accept).flatten().tolist():
                a, b = rungs[i].state_dict(), rungs[i + 1].state_dict()
                a = {k: v.clone() for k, v in a.items()}
                rungs[i].load_state_dict(b)
                rungs[i + 1].load_state_dict(a)
                swaps += 1
    print(f'{sweep:02d}', ' '.join(f'{e.item():.4f}' for e in energies), 'swaps', swaps)

print('final', sum(p.detach().abs().sum().item() for r in rungs for p in r.parameters()))
