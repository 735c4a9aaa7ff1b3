"""Semi-supervised kelp canopy classification (mean teacher, confident pseudo-labels).

The EMA teacher lives on rank 0 and is sent to the other boat every few steps: on the real cluster rank 0 is the
only node with a disk, so its teacher is the one that is kept. Halfway the survey changes season and the
teacher starts again from the student.
"""
import copy
import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn

SPECIES = 6
BANDS = 10
STEPS = 36
SEND_EVERY = 3
RESET_AT = 19
CONFIDENT = 0.75

# which species can occur where (rank 0: sheltered bay, rank 1: open coast)
ABSENT = {0: [4], 1: [0, 1]}


def student_net():
    return nn.Sequential(nn.Linear(BANDS, 40), nn.SiLU(), nn.Linear(40, 40), nn.SiLU(), nn.Linear(40, SPECIES))


def occurrence_bias(rank):
    bias = torch.zeros(SPECIES)
    bias[ABSENT[rank]] = float("-inf")
    return bias


def survey(rank):
    g = torch.Generator().manual_seed(60 + rank)
    centres = torch.randn(SPECIES, BANDS, generator=torch.Generator().manual_seed(4)) * 1.3
    here = torch.tensor([s for s in range(SPECIES) if s not in ABSENT[rank]])
    while True:
        y = here[torch.randint(len(here), (16,), generator=g)]
        u = here[torch.randint(len(here), (48,), generator=g)]
        yield (centres[y] + torch.randn(16, BANDS, generator=g), y,
               centres[u] + torch.randn(48, BANDS, generator=g))


@torch.no_grad()
def ema(teacher, student, decay):
    for t, s in zip(teacher.parameters(), student.parameters()):
        t.lerp_(s, 1 - decay)


@torch.no_grad()
def send(teacher):
    for t in teacher.parameters():
        dist.broadcast(t.data, src=0)


def boat(rank, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=2)
    torch.set_num_threads(1)
    torch.manual_seed(12)
    student = nn.parallel.DistributedDataParallel(student_net())
    teacher = copy.deepcopy(student.module).requires_grad_(False)
    opt = torch.optim.SGD(student.parameters(), lr=0.15, momentum=0.8, nesterov=True)
    bias = occurrence_bias(rank)

    for step, (x, y, u) in zip(range(1, STEPS + 1), survey(rank)):
        if step == RESET_AT:
            teacher.load_state_dict(student.module.state_dict())
            for group in opt.param_groups:
                group["lr"] *= 0.5

        conf, pseudo = F.softmax(teacher(u) + bias, dim=1).max(dim=1)
        sure = conf > CONFIDENT
        logits = student(torch.cat([x, u + 0.1 * torch.sin(u * step)])) + bias
        labelled, free = logits[:len(x)], logits[len(x):]
        supervised = F.cross_entropy(labelled, y)
        consistency = (F.cross_entropy(free, pseudo, reduction="none") * sure).sum() / sure.sum().clamp(min=1)
        loss = supervised + 0.5 * consistency
        opt.zero_grad()
        loss.backward()
        opt.step()

        if rank == 0:
            ema(teacher, student.module, decay=0.9)
        if step % SEND_EVERY == 0:
            send(teacher)

        # for the log: agreement among the sure ones; there are none of them in the beginning (nan)
        agree = (free.argmax(1) == pseudo)[sure].float().mean()
        row = torch.stack([loss.detach(), agree])
        dist.all_reduce(row)
        if rank == 0:
            print(f"step={step} loss={row[0] / 2:.6f} agreement={row[1] / 2:.3f} sure={int(sure.sum())}", flush=True)

    if rank == 0:
        print(f"student={sum(p.double().sum().item() for p in student.parameters()):.6f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(boat, args=(port,), nprocs=2)
