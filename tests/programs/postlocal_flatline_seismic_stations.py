"""Arrival envelopes from seismic stations, post-local SGD.

Ranks are station networks. The broadband network (rank 0) has a tilt channel with a head of its own, the short-period one
(rank 1) has a corner frequency, so one head gets no gradient on either of them (find_unused_parameters). Gradients are averaged inside the node by
post_localSGD_hook, the weights over all nodes every 4 steps by the averager, which on one node changes nothing.
"""
import logging

import torch
import torch.distributed as dist
import torch.distributed.algorithms.model_averaging.averagers as averagers
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel

logging.getLogger("torch.distributed").setLevel(logging.ERROR)
WARMUP, PERIOD, STEPS, TRACES, LENGTH = 8, 4, 30, 10, 48


def standardise(trace):
    centred = trace - trace.mean(-1, keepdim=True)
    return centred / centred.std(-1, keepdim=True)


class Picker(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(1, 1))
        self.filters = nn.Conv1d(1, 6, 7, padding=3)
        self.envelope = nn.Conv1d(6, 1, 5, padding=2)
        self.extra = nn.ModuleDict({name: nn.Linear(LENGTH, 1) for name in ("tilt", "corner")})

    def forward(self, trace, head):
        x = standardise(trace * self.gain)
        h = torch.relu(self.filters(x.unsqueeze(1)))
        env = self.envelope(h).squeeze(1)
        return env, self.extra[head](x).squeeze(-1)


class Network:
    """An endless reader of one network's archive."""

    def __init__(self, rank):
        self.rank, self.n = rank, 0
        self.gen = torch.Generator().manual_seed(81 + rank)

    def __iter__(self):
        return self

    def __next__(self):
        self.n += 1
        t = torch.arange(LENGTH).float()
        onset = torch.randint(8, 36, (TRACES, 1), generator=self.gen).float()
        env = torch.exp(-(t - onset).clamp(min=0) / 6) * (t >= onset)
        trace = env * torch.sin(t * (0.9 + 0.4 * self.rank)) + 0.1 * torch.randn(TRACES, LENGTH, generator=self.gen)
        extra = 0.05 * onset.squeeze(1) - 1
        if self.rank == 1 and self.n == 18:
            trace[3] = 0.0          # telemetry gap, filled with zeros by the archive
        return trace, env, extra


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(12)
    model = DistributedDataParallel(Picker(), find_unused_parameters=True)
    inside, _ = dist.new_subgroups(group_size=2)
    state = PostLocalSGDState(process_group=None, subgroup=inside, start_localSGD_iter=WARMUP)
    model.register_comm_hook(state, post_localSGD_hook)
    optimizer = PostLocalSGDOptimizer(
        optim=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.8),
        averager=averagers.PeriodicModelAverager(period=PERIOD, warmup_steps=WARMUP),
    )
    for step, (trace, env, extra) in zip(range(1, STEPS + 1), Network(rank)):
        predicted, guess = model(trace, head="corner" if rank else "tilt")
        loss = (predicted - env).square().mean() + 0.1 * (guess - extra).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            print(f"[{step:02d}] loss of the broadband network {loss.item():.6f}")
    total = sum(p.detach().sum().item() for p in model.parameters())
    if rank == 0:
        print(f"weights {total:.6f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
