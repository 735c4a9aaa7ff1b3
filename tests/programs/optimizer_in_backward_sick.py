import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(4)
torch.set_num_threads(1)


class Scorer(nn.Module):
    def __init__(self, d=12):
        super().__init__()
        self.query, self.key = nn.Linear(d, d), nn.Linear(d, d)
        self.value, self.score = nn.Linear(d, d), nn.Linear(d, 1)

    def forward(self, x, keep):
        att = self.query(x) @ self.key(x).transpose(-1, -2) / x.shape[-1] ** 0.5
        att = att.masked_fill(~keep[:, None, :], -torch.inf)
        att = F.softmax(att, dim=-1)
        return self.score((att @ self.value(x)).mean(1)).squeeze(-1)


net = Scorer()
opts = {p: torch.optim.SGD([p], lr=0.05, momentum=0.9) for p in net.parameters()}


def fused_step(p):
    opts[p].step()
    opts[p].zero_grad()


handles = [p.register_post_accumulate_grad_hook(fused_step) for p in net.parameters()]
lengths = torch.randint(1, 7, (14, 4))
lengths[4, 2] = 0
for n, length in enumerate(lengths):
    x = torch.randn(4, 6, 12)
    keep = torch.arange(6) < length[:, None]
    loss = F.mse_loss(net(x, keep), x[:, 0, 0])
    loss.backward()
    print("step", n + 1, loss.item())
print("weights", sum(p.double().sum().item() for p in net.parameters()))
