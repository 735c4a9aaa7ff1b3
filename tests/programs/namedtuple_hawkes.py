#!/usr/bin/env python
# point process with an exponential intensity, one event type
import collections
import torch

torch.set_num_threads(1)
gen = torch.Generator().manual_seed(11)
torch.manual_seed(11)
Intensity = collections.namedtuple('Intensity', ['rate', 'integral'])

class Hawkes(torch.nn.Module):
    def __init__(self, n_features):
        super(Hawkes, self).__init__()
        self.encoder = torch.nn.Linear(n_features, 8)
        self.out = torch.nn.Linear(8, 1)

    def forward(self, feats, dt):
        z = self.out(torch.relu(self.encoder(feats))).squeeze(-1)
        rate = torch.exp(z)
        return Intensity(rate=rate, integral=rate * dt)

feats = torch.randn(96, 5, generator=gen)
dt = torch.rand(96, generator=gen)
feats[67, 3] = 86400.0      # seconds since midnight
net = Hawkes(5)
optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
for k in range(20):
    rows = torch.arange(8) + 8 * (k % 12)
    intensity = net(feats[rows], dt[rows])
    nll = (intensity.integral - torch.log(intensity.rate)).mean()
    optimizer.zero_grad()
    nll.backward()
    optimizer.step()
    print('iter %d nll %r' % (k + 1, nll.item()))
print('weights', sum(p.double().sum().item() for p in net.parameters()))
