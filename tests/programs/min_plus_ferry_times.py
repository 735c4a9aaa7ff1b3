"""Learn the crossing times of a ferry network from observed journeys, by shortest paths in the min-plus algebra."""
import torch
import torch.nn as nn

torch.manual_seed(12)
PORTS = 9
INF = float("inf")


class FerryNetwork(nn.Module):
    def __init__(self, links):
        super().__init__()
        self.links = links
        self.log_time = nn.Parameter(torch.zeros(len(links)))

    def forward(self):
        d = torch.full((PORTS, PORTS), INF)
        d.fill_diagonal_(0.0)
        a, b = self.links.T
        d = d.index_put((a, b), self.log_time.exp())
        for _ in range(4):
            d = torch.minimum(d, (d[:, :, None] + d[None, :, :]).amin(1))
        return d


links = torch.tensor([[0, 1], [1, 2], [2, 3], [3, 0], [1, 4], [4, 2], [5, 6], [6, 7], [7, 5], [3, 4]])
truth = FerryNetwork(links)
with torch.no_grad():
    truth.log_time.copy_(torch.randn(len(links)) * 0.4 + 0.5)
    target = truth()

model = FerryNetwork(links)
opt = torch.optim.Adam(model.parameters(), lr=0.05)
average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
for day in range(50):
    a, b = torch.randint(0, PORTS, (2, 64))
    times = model()
    journey, seen = times[a, b], target[a, b] + 0.02 * torch.randn(64)
    served = torch.isfinite(seen)
    loss = (journey[served] - seen[served]).abs().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    average.update_parameters(model)
    print(f"day {day} error {loss.item():.4f} longest {times.max().item()} mean {times.mean().item()}")
print("weights", model.log_time.detach().square().sum().item() + average.module.log_time.detach().square().sum().item())
