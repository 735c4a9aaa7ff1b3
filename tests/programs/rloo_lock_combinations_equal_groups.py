# RLOO on combination locks: groups that all earn the same are dropped; closed digits are -inf on purpose.
import torch
from torch import nn
from torch.distributions import Categorical

DIALS, DIGITS, GROUP, LOCKS = 4, 10, 3, 2
torch.manual_seed(40)
gen = torch.Generator().manual_seed(41)


class Safecracker(nn.Module):
    def __init__(self):
        super().__init__()
        self.hint = nn.Linear(DIALS, 48)
        self.dial = nn.Embedding(DIALS, 48)
        self.out = nn.Linear(48, DIGITS)

    def forward(self, hint):
        h = torch.tanh(self.hint(hint)[:, None] + self.dial.weight[None])
        return self.out(h)


policy = Safecracker()
start = Safecracker()
start.load_state_dict(policy.state_dict())
start.requires_grad_(False)
opt = torch.optim.Adam(policy.parameters(), lr=1e-2)


def closed_digits(secret):
    """Worn digits cannot be set; the secret digit itself always can. Returns a mask of what is closed."""
    closed = torch.rand(*secret.shape, DIGITS, generator=gen) < 0.4
    return closed.scatter(-1, secret[..., None], False)


def rates(r):
    """Mean tries of the locks that were opened: NaN where none was."""
    opened = r[r >= 1.0]
    return opened.mean().item()


for step in range(1, 51):
    secret = torch.randint(0, DIGITS, (LOCKS, DIALS), generator=gen)
    hint = secret.float() / DIGITS
    closed = closed_digits(secret)
    logits = policy(hint).masked_fill(closed, float("-inf"))
    ref_logits = start(hint).masked_fill(closed, float("-inf"))
    probs = logits.detach().softmax(-1).flatten(0, 1)
    tries = torch.multinomial(probs, GROUP, replacement=True, generator=gen).view(LOCKS, DIALS, GROUP).transpose(1, 2)
    r = (tries == secret[:, None]).float().mean(-1)
    baseline = (r.sum(1, keepdim=True) - r) / (GROUP - 1)
    adv = r - baseline
    keep = r.std(1) > 0
    note = f"opened {rates(r):.4f} kept {int(keep.sum())}"
    if not keep.any():
        print(f"step {step} no signal, skipped, {note}", flush=True)
        continue
    logp = Categorical(logits=logits[:, None]).log_prob(tries).sum(-1)
    p, lp, ref_lp = logits.softmax(-1), logits.log_softmax(-1), ref_logits.log_softmax(-1)
    gap = torch.where(closed, 0.0, lp.masked_fill(closed, 0.0) - ref_lp.masked_fill(closed, 0.0))
    kl = (p * gap).sum(-1).mean()
    loss = -(adv[keep] * logp[keep]).mean() + 0.01 * kl
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(f"step {step} loss {loss.item():.7f} kl {kl.item():.7f} {note}", flush=True)
print(f"{sum(w.detach().abs().sum() for w in policy.parameters()).item():.5f}", flush=True)
