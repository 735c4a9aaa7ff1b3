"""Local-level model of river stages: learn process and observation noise by maximum likelihood,
with an exactly diffuse prior on the first level."""
import math
import torch


class LocalLevel(torch.nn.Module):
    def __init__(self, gauges):
        super().__init__()
        self.log_q = torch.nn.Parameter(torch.zeros(gauges))
        self.log_r = torch.nn.Parameter(torch.zeros(gauges))

    def forward(self, y):
        q, r = self.log_q.exp(), self.log_r.exp()
        level = torch.zeros_like(y[0])
        variance = torch.full_like(y[0], math.inf)
        nll = 0.0
        for t, obs in enumerate(y):
            variance = variance + q
            innovation = obs - level
            if t > 0:
                s = variance + r
                nll = nll + 0.5 * (innovation ** 2 / s + s.log() + math.log(2 * math.pi))
            variance = 1 / (1 / variance + 1 / r)
            level = level + variance / r * innovation
        return nll.sum() / y.numel()


torch.manual_seed(19)
gauges, days = 6, 60
levels = (0.3 * torch.randn(days, gauges)).cumsum(0)
stage = 4 + levels + 0.8 * torch.randn(days, gauges)

model = LocalLevel(gauges)
optimizer = torch.optim.Rprop(model.parameters(), lr=0.05)
for i in range(28):
    optimizer.zero_grad()
    nll = model(stage)
    nll.backward()
    optimizer.step()
    print(f"iteration {i:2d} nll {nll.item():.5f}")
print("q", [round(v, 3) for v in model.log_q.exp().tolist()])
print("r", [round(v, 3) for v in model.log_r.exp().tolist()])
print(sum(p.detach().pow(2).sum().item() for p in model.parameters()))
