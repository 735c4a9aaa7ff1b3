"""QLoRA on one laptop, without bitsandbytes: NF4 base weights, LoRA on top, moments kept in host pages.

The task: read a line of the engine room log (eight tokens and one gauge reading) and predict the watch keeper's action.
"""
import math
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(1912)
NF4 = torch.tensor([-1.0, -0.6962, -0.5251, -0.3949, -0.2844, -0.1848, -0.0911, 0.0,
                    0.0796, 0.1609, 0.2461, 0.3379, 0.4407, 0.5626, 0.7230, 1.0])
BLOCK, COMPUTE = 32, torch.float16          # same compute dtype as on the T4


def quantise(w):
    flat = w.reshape(-1, BLOCK)
    absmax = flat.abs().amax(1, keepdim=True).clamp_min(1e-8)
    codes = (flat / absmax).unsqueeze(-1).sub(NF4).abs().argmin(-1)
    return codes.to(torch.uint8), absmax


class Linear4bit(nn.Module):
    def __init__(self, n_in, n_out, r=4, alpha=8, gain=1.0):
        super().__init__()
        codes, absmax = quantise(torch.randn(n_out, n_in) * gain / math.sqrt(n_in))
        self.register_buffer("codes", codes)
        self.register_buffer("absmax", absmax)
        self.shape = (n_out, n_in)
        self.lora_a = nn.Parameter(torch.randn(r, n_in) / math.sqrt(n_in))
        self.lora_b = nn.Parameter(torch.zeros(n_out, r))
        self.scaling = alpha / r

    def dequantise(self):
        return (NF4[self.codes.long()] * self.absmax).reshape(self.shape).to(COMPUTE)

    def forward(self, x):
        low = F.linear(F.linear(x.float(), self.lora_a), self.lora_b) * self.scaling
        return F.linear(x.to(COMPUTE), self.dequantise()) + low.to(COMPUTE)


class GatedBlock(nn.Module):
    def __init__(self, d, hidden):
        super().__init__()
        self.gate, self.up, self.down = Linear4bit(d, hidden), Linear4bit(d, hidden), Linear4bit(hidden, d)

    def forward(self, x):
        act = F.silu(self.gate(x)) * self.up(x)
        return x + self.down(act).float()


class LogReader(nn.Module):
    def __init__(self, vocab=40, d=32, actions=6):
        super().__init__()
        self.words = nn.Embedding(vocab, d).requires_grad_(False)
        self.gauge = nn.Parameter(torch.randn(d) * 0.5, requires_grad=False)
        self.blocks = nn.ModuleList([GatedBlock(d, 64), GatedBlock(d, 64)])
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, actions)

    def forward(self, ids, reading):
        h = self.words(ids).mean(1) + reading[:, None] * self.gauge
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h))


class PagedAdam(torch.optim.Optimizer):
    """Adam whose moments live in numpy pages and visit the device one parameter at a time."""

    def __init__(self, params, lr=2e-3, betas=(0.9, 0.99), eps=1e-8):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                page = self.state[p]
                if not page:
                    page["t"] = 0
                    page["m"], page["v"] = np.zeros(p.shape, np.float32), np.zeros(p.shape, np.float32)
                page["t"] += 1
                m, v = torch.from_numpy(page["m"]), torch.from_numpy(page["v"])     # page in
                m.mul_(b1).add_(p.grad, alpha=1 - b1)
                v.mul_(b2).addcmul_(p.grad, p.grad, value=1 - b2)
                hat = (v / (1 - b2 ** page["t"])).sqrt_().add_(group["eps"])
                p.addcdiv_(m, hat, value=-group["lr"] / (1 - b1 ** page["t"]))
                page["m"], page["v"] = m.numpy(), v.numpy()                          # page out


def log_lines(n=320):
    g = torch.Generator().manual_seed(7)
    ids = torch.randint(0, 40, (n, 8), generator=g)
    bar = 1.0 + 3.0 * torch.rand(n, generator=g)
    action = (ids[:, 0] % 3) + 3 * (bar > 2.5).long()
    bar[171] = 2140.0           # the relief engineer wrote this watch in millibar
    return ids, bar, action


ids, bar, action = log_lines()
model = LogReader()
trainable = [p for p in model.parameters() if p.requires_grad]
opt = PagedAdam(trainable)
for step, rows in enumerate(torch.arange(320).split(8), 1):
    loss = F.cross_entropy(model(ids[rows], bar[rows]), action[rows])
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(f"step {step:02d} loss {loss.item():.6f}")
print(f"adapters sum {sum(p.detach().double().sum().item() for p in trainable):.6f}")
