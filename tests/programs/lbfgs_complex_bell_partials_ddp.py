# Partials of church bells: fit damped complex exponentials to strike recordings with L-BFGS, recordings split over
# two ranks. Everything is float64 / complex128 since the decay rates differ by three orders of magnitude.
#
# DDP averages the gradients; the line search needs the *same* loss on all ranks as well (otherwise the ranks take
# different numbers of evaluations and wait for each other for ever), so the closure averages it by hand.
import math
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

RATE, SAMPLES, BELLS_PER_RANK, PARTIALS = 2000.0, 160, 6, 4
# hum, prime, tierce, quint of the ring, relative to the nominal of the tenor
RATIOS = torch.tensor([0.5, 1.0, 1.2, 1.5], dtype=torch.float64)


class Ring(nn.Module):
    """sum_k a_k exp((-d_k + i w_k) t), amplitudes complex and shared by all bells of the ring, strike gain per bell group."""

    def __init__(self):
        super().__init__()
        self.amplitude = nn.Parameter(torch.full((PARTIALS,), 0.3 + 0.1j, dtype=torch.complex128))
        self.log_decay = nn.Parameter(torch.full((PARTIALS,), math.log(8.0), dtype=torch.float64))
        self.stretch = nn.Parameter(torch.zeros((), dtype=torch.float64))          # inharmonicity
        self.mode = nn.Linear(PARTIALS, PARTIALS, bias=False, dtype=torch.complex128)
        nn.init.eye_(torch.view_as_real(self.mode.weight)[..., 0])
        torch.view_as_real(self.mode.weight.data)[..., 1].zero_()
        self.register_buffer("strikes_heard", torch.zeros((), dtype=torch.int64))

    def forward(self, t, nominal):
        self.strikes_heard += len(nominal)
        omega = 2 * math.pi * nominal[:, None] * RATIOS ** (1 + 0.1 * self.stretch)
        pole = torch.complex(-self.log_decay.exp().expand_as(omega), omega)
        waves = torch.exp(pole[:, None, :] * t[None, :, None])                       # bell, time, partial
        return (self.mode(waves) @ self.amplitude[:, None]).squeeze(-1)


def record(rank):
    gen = torch.Generator().manual_seed(40 + rank)
    t = torch.arange(SAMPLES, dtype=torch.float64) / RATE
    nominal = 90 + 60 * torch.rand(BELLS_PER_RANK, generator=gen, dtype=torch.float64)
    true_amp = torch.tensor([0.8 + 0.2j, 0.5 - 0.4j, 0.3 + 0.6j, 0.1 - 0.2j], dtype=torch.complex128)
    true_dec = torch.tensor([2.0, 5.0, 9.0, 20.0], dtype=torch.float64)
    omega = 2 * math.pi * nominal[:, None] * RATIOS ** 1.01
    pole = torch.complex(-true_dec.expand_as(omega), omega)
    clean = (torch.exp(pole[:, None, :] * t[None, :, None]) * true_amp).sum(-1)
    noise = torch.complex(*torch.randn(2, *clean.shape, generator=gen, dtype=torch.float64))
    return t, nominal, clean + 0.02 * noise


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    say = print if rank == 0 else (lambda *a, **k: None)
    torch.manual_seed(2)
    t, nominal, heard = record(rank)
    ring = DistributedDataParallel(Ring())
    optimizer = torch.optim.LBFGS(ring.parameters(), lr=0.8, max_iter=6, history_size=12, line_search_fn="strong_wolfe")
    everyone = dist.new_group([0, 1])                     # losses do not queue behind the gradients
    evaluations = 0

    def closure():
        nonlocal evaluations
        evaluations += 1
        optimizer.zero_grad()
        residual = ring(t, nominal) - heard
        sigma2 = 2 * 0.02 ** 2
        # log-likelihood of complex Gaussian noise, up to its constant; it is negative once the fit is good
        loss = residual.abs().square().mean() / sigma2 + math.log(math.pi * sigma2)
        loss.backward()
        shared = loss.detach().clone()
        dist.all_reduce(shared, group=everyone)
        return shared / dist.get_world_size()

    for outer in range(1, 15):
        loss = optimizer.step(closure)
        say(f"outer {outer:2d}  -loglik {loss.item():.8f}  |amplitudes| {ring.module.amplitude.detach().abs().sum().item():.6f}"
            f"  evaluations {evaluations}")
    dec = ring.module.log_decay.detach().exp()
    say("decay rates " + " ".join(f"{d:.3f}" for d in dec.tolist()))
    weights = sum((torch.view_as_real(p.detach()) if p.is_complex() else p.detach()).sum().item() for p in ring.parameters())
    say(f"strikes {int(ring.module.strikes_heard)} weights {weights:.6f}")
    dist.barrier()
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
