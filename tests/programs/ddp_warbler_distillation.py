"""Distil a big warbler-song classifier into a field-recorder sized one. Student temperature is learned.

Schedule of the loss: alpha * KL(teacher_T || student_tau) + (1 - alpha) * CE, all in closures.
"""
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

CONFIG = {
    "bands": 40, "species": 9, "batch": 32, "steps": 48,
    "alpha": 0.7, "teacher_T": 1.0,
    "optim": {"body": {"lr": 0.05, "momentum": 0.9}, "tau": {"lr": 0.06, "weight_decay": 0.1}},
    "seed": 2718,
}


class Recorder(nn.Module):
    """two layers fit in the flash of the recorder"""

    def __init__(self, bands, species):
        super().__init__()
        self.hidden = nn.Linear(bands, 24)
        self.out = nn.Linear(24, species)
        self.raw_tau = nn.Parameter(torch.tensor(1.5))

    def forward(self, spec):
        logits = self.out(F.gelu(self.hidden(spec)))
        tau = F.relu(self.raw_tau)      # temperatures are positive
        return logits, logits / tau, tau


def build_teacher(cfg):
    g = torch.Generator().manual_seed(cfg["seed"])
    prototypes = torch.randn(cfg["species"], cfg["bands"], generator=g)

    @torch.no_grad()
    def teacher(spec):
        return spec @ prototypes.T * 1.2

    return teacher, prototypes


def song_stream(cfg, rank, prototypes):
    g = torch.Generator().manual_seed(cfg["seed"] + 1 + rank)
    while True:
        label = torch.randint(cfg["species"], (cfg["batch"],), generator=g)
        spec = prototypes[label] + 0.6 * torch.randn(cfg["batch"], cfg["bands"], generator=g)
        yield spec, label


def make_objective(cfg, teacher):
    T, alpha = cfg["teacher_T"], cfg["alpha"]

    def objective(student_out, spec, label):
        plain, tempered, _ = student_out
        target = F.softmax(teacher(spec) / T, dim=-1)
        kd = F.kl_div(F.log_softmax(tempered, dim=-1), target, reduction="batchmean")
        return alpha * kd + (1 - alpha) * F.cross_entropy(plain, label)

    return objective


def make_step(student, optimizers, objective):
    def step(spec, label):
        out = student(spec)
        loss = objective(out, spec, label)
        for o in optimizers:
            o.zero_grad()
        loss.backward()
        for o in optimizers:
            o.step()
        acc = (out[0].argmax(-1) == label).float().mean()
        return loss.detach(), acc, out[2].detach()

    return step


def main(cfg):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(cfg["seed"])
    net = Recorder(cfg["bands"], cfg["species"])
    student = DistributedDataParallel(net)
    body = [p for n, p in net.named_parameters() if n != "raw_tau"]
    optimizers = [
        torch.optim.SGD(body, **cfg["optim"]["body"]),
        torch.optim.Adam([net.raw_tau], **cfg["optim"]["tau"]),
    ]
    teacher, prototypes = build_teacher(cfg)
    step = make_step(student, optimizers, make_objective(cfg, teacher))
    for i, (spec, label) in zip(range(cfg["steps"]), song_stream(cfg, rank, prototypes)):
        loss, acc, tau = step(spec, label)
        stats = torch.stack([loss, acc])
        dist.all_reduce(stats)
        if rank == 0:
            print(f"[{i + 1:02d}] loss {stats[0] / 2:.6f} acc {stats[1] / 2:.3f} tau {tau:.4f}", flush=True)
    if rank == 0:
        print("student checksum", sum(p.detach().double().sum().item() for p in net.parameters()), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(CONFIG)
