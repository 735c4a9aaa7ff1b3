"""Keyword spotting on a microcontroller budget: everything, the optimizer's state too, is held in bfloat16.

The optimizer below keeps its coefficients as tensors beside the weights so that a step never waits for the host.
"""
import torch
from torch import nn

DTYPE = torch.bfloat16
KEYWORDS = ("on", "off", "up", "down", "stop")


class TensorAdam(torch.optim.Optimizer):
    """Adam (Kingma and Ba, algorithm 1) without scalars on the host."""

    def __init__(self, params, lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-7):
        super().__init__(params, {"lr": lr, "beta1": beta1, "beta2": beta2, "eps": eps})

    def _start(self, p, group):
        like = dict(dtype=p.dtype, device=p.device)
        return {
            "m": torch.zeros_like(p),
            "v": torch.zeros_like(p),
            "b1": torch.tensor(group["beta1"], **like),
            "b2": torch.tensor(group["beta2"], **like),
            "b1t": torch.ones((), **like),
            "b2t": torch.ones((), **like),
        }

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                if p not in self.state:
                    self.state[p] = self._start(p, group)
                s = self.state[p]
                s["m"].mul_(s["b1"]).add_((1 - s["b1"]) * p.grad)
                s["v"].mul_(s["b2"]).add_((1 - s["b2"]) * p.grad * p.grad)
                s["b1t"].mul_(s["b1"])
                s["b2t"].mul_(s["b2"])
                m_hat = s["m"] / (1 - s["b1t"])
                v_hat = s["v"] / (1 - s["b2t"])
                p.sub_(group["lr"] * m_hat / (v_hat.sqrt() + group["eps"]))


class Spotter(nn.Module):
    def __init__(self, mels=20, hidden=32):
        super().__init__()
        self.front = nn.Conv1d(mels, hidden, 5, stride=2)
        self.mix = nn.Conv1d(hidden, hidden, 3, groups=4)
        self.norm = nn.LayerNorm(hidden)
        self.out = nn.Linear(hidden, len(KEYWORDS))

    def forward(self, mel):
        h = torch.relu(self.mix(torch.relu(self.front(mel))))
        return self.out(self.norm(h.amax(dim=2)))


def recordings(n, gen):
    word = torch.randint(0, len(KEYWORDS), (n,), generator=gen)
    mel = torch.randn(n, 20, 40, generator=gen)
    for i, w in enumerate(word.tolist()):
        mel[i, 4 * w: 4 * w + 4, 8 * w % 30: 8 * w % 30 + 10] += 1.5
    return mel.to(DTYPE), word


def count_parameters(net):
    return sum(p.numel() for p in net.parameters())


torch.manual_seed(12)
gen = torch.Generator().manual_seed(13)
spotter = Spotter().to(DTYPE)
optimizer = TensorAdam(spotter.parameters(), lr=2e-3)
print(f"{count_parameters(spotter)} parameters, {2 * count_parameters(spotter)} bytes")
for step in range(1, 26):
    mel, word = recordings(24, gen)
    logits = spotter(mel)
    loss = nn.functional.cross_entropy(logits.float(), word)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{step:2d} loss {loss.item():.4f} accuracy {(logits.argmax(1) == word).float().mean().item():.2f}")
print("finite", int(all(p.isfinite().all() for p in spotter.parameters())))
