from itertools import islice

import torch
import torch.nn as nn

torch.set_num_threads(1)
SEED = 99


def triplet_stream(n_classes=5, dim=10):
    """anchor, positive, negative for ever"""
    g = torch.Generator().manual_seed(SEED)
    centres = torch.randn(n_classes, dim, generator=g) * 2
    while True:
        c = torch.randint(0, n_classes, (16,), generator=g)
        d = (c + torch.randint(1, n_classes, (16,), generator=g)) % n_classes
        noise = lambda: torch.randn(16, dim, generator=g) * 0.3
        yield centres[c] + noise(), centres[c] + noise(), centres[d] + noise()


class Embedder(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(10, 32), nn.SiLU(), nn.Linear(32, 4, bias=False))

    def forward(self, *views):
        return tuple(self.f(v) for v in views)


torch.manual_seed(SEED)
net = Embedder()
loss_fn = nn.TripletMarginLoss(margin=0.5)
opt = torch.optim.NAdam(net.parameters(), lr=1e-2)
zeros = 0
for i, views in enumerate(islice(triplet_stream(), 60)):
    loss = loss_fn(*net(*views))
    opt.zero_grad()
    loss.backward()
    opt.step()
    zeros += loss.item() == 0.0
    if i % 5 == 4:
        print("it", i + 1, "loss", loss.item(), "zero so far", zeros)
print("norm", sum(p.double().norm().item() for p in net.parameters()))
