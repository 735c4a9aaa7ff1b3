"""Origin of honey from pollen counts and a lab panel.

Every jar votes on every weight with the sign of its own gradient; the weights go one
small step in the direction of the majority.
"""
import torch
import torch.nn as nn
from torch.func import functional_call, grad, vmap

torch.manual_seed(30)
POLLEN, PANEL, ORIGINS, JARS = 14, 6, 5, 40
TEMPLATES = torch.randn(ORIGINS, POLLEN + PANEL)


def jars_of_the_day(day):
    y = torch.randint(0, ORIGINS, (JARS,))
    x = TEMPLATES[y] + 0.8 * torch.randn(JARS, POLLEN + PANEL)
    unmeasured = torch.rand(JARS, PANEL) < (1.0 if day % 11 == 5 else 0.3)
    x[:, POLLEN:] = x[:, POLLEN:].masked_fill(unmeasured, float("nan"))
    return x, y


class Assayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.fill = nn.Parameter(torch.zeros(PANEL))
        self.hidden = nn.Linear(POLLEN + 2 * PANEL, 24)
        self.origin = nn.Linear(24, ORIGINS)

    def forward(self, x):
        pollen, panel = x[..., :POLLEN], x[..., POLLEN:]
        missing = panel.isnan()
        panel = torch.where(missing, self.fill, panel.nan_to_num(0.0))
        return self.origin(torch.relu(self.hidden(torch.cat([pollen, panel, missing.float()], -1))))


net = Assayer()


def jar_loss(weights, x, y):
    z = functional_call(net, weights, (x,))
    own = torch.arange(ORIGINS) == y
    # margin to the best of the other origins
    rival = z.masked_fill(own, -torch.inf).amax()
    right = (z * own).sum()
    return torch.relu(1.0 + rival - right), (z.argmax() == y)


ballot = vmap(grad(jar_loss, has_aux=True), in_dims=(None, 0, 0))
score = vmap(jar_loss, in_dims=(None, 0, 0))
rate = 0.02

for day in range(1, 33):
    x, y = jars_of_the_day(day)
    weights = {k: v.detach() for k, v in net.named_parameters()}
    votes, right = ballot(weights, x, y)
    margins, _ = score(weights, x, y)
    with torch.no_grad():
        turnout = 0
        for name, p in net.named_parameters():
            tally = votes[name].sign().sum(0)
            turnout += int((tally != 0).sum())
            p.sub_(rate * tally.sign())
    if day % 8 == 0:
        rate *= 0.5
    print(f"day {day:2d}: margin loss {margins.mean():.4f}, worst jar {margins.max():.3f}, "
          f"right {int(right.sum())}/{JARS}, weights moved {turnout}")

print(f"total weight {sum(p.abs().sum().item() for p in net.parameters()):.5f}")
