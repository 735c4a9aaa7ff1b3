#!/usr/bin/env python
# Fish passes at the weir: a wide teacher (frozen, trained last season) teaches the student
# that runs on the camera. Two cameras, one per process.
#   torchrun --standalone --nproc_per_node 2 weir_cameras_patient_teacher.py
import argparse
import torch
from torch import nn
import torch.nn.functional as F
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

SPECIES = ["none", "trout", "eel", "salmon"]


def bf16_wire(group, bucket):
    """Compress the bucket to bfloat16 for the way, divide first as the stock hook does."""
    packed = bucket.buffer().to(torch.bfloat16).div_(dist.get_world_size(group))
    fut = dist.all_reduce(packed, group=group, async_op=True).get_future()

    def unpack(f):
        out = bucket.buffer()
        out.copy_(f.value()[0])
        return out

    return fut.then(unpack)


def trunk(width, depth):
    layers, c = [], 1
    for i in range(depth):
        layers += [nn.Conv2d(c, width, 3, padding=1, stride=2), nn.GroupNorm(4, width), nn.SiLU()]
        c = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, len(SPECIES)))


def frames(rank, n, gen):
    """Dark murky frames; a passing fish is a streak whose width and slope give it away."""
    # camera 1 sees hardly any eel
    odds = torch.tensor([[.5, .2, .1, .2], [.6, .25, .03, .12]])[rank]
    y = torch.multinomial(odds, n, True, generator=gen)
    x = 0.3 * torch.randn(n, 1, 20, 20, generator=gen)
    for i, k in enumerate(y.tolist()):
        if k:
            r = int(torch.randint(2, 14, (1,), generator=gen))
            x[i, 0, r : r + k + 1, 2 * k : 2 * k + 10] += 1.5
    return x, y


def recall(pred, y, k):
    hit = ((pred == k) & (y == k)).float().sum()
    return hit / (y == k).float().sum()   # nan in a batch without one: shown, as in the notebook


class Distill(nn.Module):
    def __init__(self, teacher, T):
        super().__init__()
        self.teacher = teacher.eval().requires_grad_(False)
        self.T = T

    def forward(self, x, student_logits):
        with torch.no_grad():
            soft = (self.teacher(x) / self.T).softmax(-1)
        logp = (student_logits / self.T).log_softmax(-1)
        return F.kl_div(logp, soft, reduction="batchmean") * self.T ** 2


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=40)
    ap.add_argument("--temperature", type=float, default=3.0)
    a = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)

    torch.manual_seed(77)
    teacher, student = trunk(24, 3), trunk(8, 2)
    kd = Distill(teacher, a.temperature)
    net = DDP(student, static_graph=True, gradient_as_bucket_view=True)
    net.register_comm_hook(None, bf16_wire)
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 0.1, total_steps=a.steps)
    gen = torch.Generator().manual_seed(900 + rank)

    for step in range(1, a.steps + 1):
        x, y = frames(rank, 12, gen)
        # first the teacher alone, the hard labels come in slowly
        mix = min(1.0, max(0.0, (step - 8) / 16))
        logits = net(x)
        loss = (1 - mix) * kd(x, logits) + mix * F.cross_entropy(logits, y)
        opt.zero_grad()          # set_to_none, the bucket view comes back in backward
        loss.backward()
        opt.step()
        sched.step()

        shown = torch.stack([loss.detach(), recall(logits.argmax(-1), y, 2)])
        dist.all_reduce(shown)
        shown /= world
        if rank == 0:
            print(f"{step:03d} mix={mix:.3f} loss={shown[0].item():.6f} eel recall={shown[1].item():.3f}")

    if rank == 0:
        print("weights", f"{sum(p.double().sum().item() for p in student.parameters()):.6f}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
