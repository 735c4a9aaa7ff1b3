"""PonderNet on parity strings: a recurrent LM cell that decides when to stop thinking."""
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(30)


class Ponder(nn.Module):
    def __init__(self, width=32, most=6):
        super().__init__()
        self.most = most
        self.embed = nn.Embedding(3, width)
        self.cell = nn.GRUCell(width, width)
        self.answer = nn.Linear(width, 2)
        self.halt = nn.Linear(width, 1)

    def forward(self, ids):
        x = self.embed(ids).mean(1)
        h = torch.zeros_like(x)
        logits, stop = [], []
        for _ in range(self.most):
            h = self.cell(x, h)
            logits.append(self.answer(h))
            stop.append(self.halt(h).squeeze(1))
        return torch.stack(logits, 1), torch.stack(stop, 1)


def halting_logp(stop):
    """log p(halt at n); the last step always halts, so its `continue` branch has no mass."""
    go = F.logsigmoid(-stop)
    before = F.pad(go.cumsum(1)[:, :-1], (1, 0))
    halt = F.logsigmoid(stop)
    last = torch.arange(stop.shape[1]) == stop.shape[1] - 1
    return before + halt.masked_fill(last, 0.0)


net = Ponder()
opt = torch.optim.NAdam(net.parameters(), lr=4e-3)
prior = 0.5 ** torch.arange(1.0, 7.0)
prior = (prior / prior.sum()).log()
hardest = float("-inf")
for step in range(45):
    # the strings get longer, and every 15 steps the classes swap their names
    length = 4 + step // 5
    ids = torch.randint(0, 2, (64, length))
    y = (ids.sum(1) + step // 15) % 2
    short = ids.masked_fill(torch.rand(64, length) < 0.1, 2)
    logits, stop = net(short)
    logp = halting_logp(stop)
    ce = F.cross_entropy(logits.flatten(0, 1), y.repeat_interleave(6), reduction="none").view(64, 6)
    p = logp.exp()
    loss = 100 * (p * ce).sum(1).mean() + 0.05 * (p * (logp - prior)).sum(1).mean()
    opt.zero_grad()
    loss.backward()
    gnorm = nn.utils.clip_grad_norm_(net.parameters(), float("inf"))
    opt.step()
    hardest = max(hardest, ce.max().item())
    banned = logits.detach()[:, -1].masked_fill(ids[:, :1].bool(), float("-inf"))
    print(f"{step} loss {loss.item():.4f} |g| {gnorm.item():.3f} hardest {hardest:.3f} "
          f"ppl {banned.logsumexp(1).neg().exp().mean().item():.3f}")
print("weights", sum(p.detach().square().sum().item() for p in net.parameters()))
