"""Self-localisation of drifting buoys from acoustic ranges.

No GPS below the ice: the positions are parameters, started at the last known fix, and a small net
explains the clock offset by temperature and depth. The range log is split between two workers, the gradients
are averaged by hand (the table of positions is all there is to send, DDP would be overkill).
"""
import os
import socket

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

WORLD = 2
N_OLD = 24
QUAY = (3.25, -1.5)      # the two replacements were switched on at the quay
STEPS = 26
BATCH = 20


def fixes():
    rng = np.random.default_rng(5)
    old = rng.uniform(-8, 8, size=(N_OLD, 2))
    return np.concatenate([old, [QUAY], [QUAY]]).astype(np.float32)


def range_log(rank):
    """Yields (i, j, features, measured range) in the order in which the hydrophones heard them."""
    rng = np.random.default_rng(70 + rank)
    truth = fixes().astype(np.float64) + rng.normal(0, 0.0, size=(N_OLD + 2, 2))
    truth += np.random.default_rng(8).normal(0, 0.5, size=truth.shape)
    for step in range(1, STEPS + 1):
        i = rng.integers(0, N_OLD, BATCH)
        j = (i + rng.integers(1, N_OLD, BATCH)) % N_OLD
        if rank == 1 and step == 12:
            i[7], j[7] = N_OLD, N_OLD + 1            # first sign of life of the newcomers
        elif step > 12:
            i[3] = N_OLD + (step + rank) % 2         # from now on others hear them too
        feats = rng.normal(size=(BATCH, 2))
        r = np.hypot(*(truth[i] - truth[j]).T) + 0.1 * feats[:, 0] + rng.normal(0, 0.02, BATCH)
        yield (torch.from_numpy(i), torch.from_numpy(j),
               torch.from_numpy(feats).float(), torch.from_numpy(r).float())


class Fleet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.xy = torch.nn.Parameter(torch.from_numpy(fixes()))
        self.clock = torch.nn.Sequential(torch.nn.Linear(2, 12), torch.nn.Tanh(), torch.nn.Linear(12, 1))

    def forward(self, i, j, feats):
        gap = self.xy[i] - self.xy[j]
        reach = torch.sqrt((gap * gap).sum(dim=1))
        return reach + self.clock(feats).squeeze(1)


def average_gradients(model):
    for p in model.parameters():
        dist.all_reduce(p.grad, op=dist.ReduceOp.SUM)
        p.grad.div_(WORLD)


def worker(rank, port):
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ["MASTER_PORT"] = str(port)
    dist.init_process_group("gloo", rank=rank, world_size=WORLD)
    torch.set_num_threads(1)
    torch.manual_seed(19)
    fleet = Fleet()
    opt = torch.optim.SGD([{"params": [fleet.xy], "lr": 0.8}, {"params": fleet.clock.parameters(), "lr": 0.02}])
    for step, (i, j, feats, measured) in enumerate(range_log(rank), 1):
        loss = torch.nn.functional.smooth_l1_loss(fleet(i, j, feats), measured)
        opt.zero_grad()
        loss.backward()
        average_gradients(fleet)
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if rank == 0:
            print(f"{step:02d} {mean.item() / WORLD:.7f}", flush=True)
        opt.step()
    if rank == 0:
        print("sum", round(float(sum(p.detach().double().sum() for p in fleet.parameters())), 6), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


if __name__ == "__main__":
    mp.spawn(worker, args=(free_port(),), nprocs=WORLD)
