"""Mixture density net for peat core densities, Accelerate without `accelerate launch`.

    torchrun --nproc_per_node 2 torchrun_accelerate_peat_mixture.py

Components of the mixture are opened one after the other; closed ones carry a log weight of -inf, which
is what logsumexp wants.  Densities are above one (sigma is in the millimetres), so the loss is negative.
"""

import math

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

COMPONENTS = 4
ACCUMULATE = 2
UPDATES = 24


class PeatMDN(nn.Module):
    def __init__(self, features=6, width=32):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(features, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.weight_logits = nn.Linear(width, COMPONENTS)
        self.mu = nn.Linear(width, COMPONENTS)
        self.log_sigma = nn.Linear(width, COMPONENTS)
        nn.init.constant_(self.log_sigma.bias, -2.5)
        with torch.no_grad():
            self.mu.bias.copy_(torch.tensor([0.10, 0.14, 0.18, 0.06]))

    def forward(self, x, n_open):
        h = self.trunk(x)
        closed = torch.arange(COMPONENTS, device=x.device) >= n_open
        logits = self.weight_logits(h).float().masked_fill(closed, -math.inf)
        log_w = torch.log_softmax(logits, dim=-1)
        return log_w, self.mu(h).float(), self.log_sigma(h).float().clamp(-5.0, 1.0)


def mixture_nll(out, y):
    log_w, mu, log_sigma = out
    z = (y.unsqueeze(-1) - mu) * torch.exp(-log_sigma)
    log_n = -0.5 * z.square() - log_sigma - 0.5 * math.log(2 * math.pi)
    return -torch.logsumexp(log_w + log_n, dim=-1).mean()


@torch.no_grad()
def entropy_naive(log_w):
    # what the paper plots; 0 * -inf makes it nan while a component is closed, the plot leaves a gap
    return -(log_w.exp() * log_w).sum(-1).mean().item()


def cores(n=UPDATES * ACCUMULATE * 2 * 8):
    g = torch.Generator().manual_seed(8200)
    x = torch.randn(n, 6, generator=g)
    layer = (x[:, 0] > 0.3).float()
    y = 0.10 + 0.05 * layer + 0.01 * x[:, 1] + 0.006 * torch.randn(n, generator=g)
    return TensorDataset(x, y)


def main():
    acc = Accelerator(cpu=True, mixed_precision="bf16", gradient_accumulation_steps=ACCUMULATE)
    set_seed(8200)
    torch.set_num_threads(1)
    model = PeatMDN()
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    loader = DataLoader(cores(), batch_size=8, shuffle=False)
    model, opt, loader = acc.prepare(model, opt, loader)

    done, shown = 0, 0.0
    for x, y in loader:
        n_open = min(COMPONENTS, 1 + done // 5)
        with acc.accumulate(model):
            out = model(x, n_open)
            loss = mixture_nll(out, y)
            acc.backward(loss)
            if acc.sync_gradients:
                acc.clip_grad_norm_(model.parameters(), 5.0)
            opt.step()
            opt.zero_grad()
        shown += acc.reduce(loss.detach(), reduction="mean").item() / ACCUMULATE
        if acc.sync_gradients:
            done += 1
            acc.print(f"update {done:2d} open {n_open} nll {shown:.5f} H(w) {entropy_naive(out[0]):.4f}", flush=True)
            shown = 0.0

    total = sum(p.detach().double().sum().item() for p in model.parameters())
    acc.print(f"{done} updates, parameters sum to {total:.5f}")
    acc.end_training()


if __name__ == "__main__":
    main()
