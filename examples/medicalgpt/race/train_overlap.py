"""Data-parallel training whose gradients travel in buckets while the backward pass goes on.

Started by torchrun. A bucket is sent as soon as it is full; its buffer takes the next gradients. `--wait` waits first.
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn


class Buckets:
    """Averages gradients over ranks, one flat buffer at a time, overlapped with the backward pass."""

    def __init__(self, model, size, wait):
        self.size, self.wait = size, wait
        self.buffer = torch.zeros(size)
        self.filled, self.inside, self.sent = 0, [], []
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(self.add)

    def add(self, parameter):
        count = parameter.numel()
        if self.filled + count > self.size:
            self.send()
        self.buffer[self.filled : self.filled + count] = parameter.grad.flatten()
        self.inside.append((parameter, self.filled))
        self.filled += count

    def send(self):
        work = dist.all_reduce(self.buffer, async_op=True)
        if self.wait:
            work.wait()
        done = work.get_future().then(self.copier(self.inside))
        self.sent.append(done)
        self.filled, self.inside = 0, []

    def copier(self, inside):
        def copy(_):
            for parameter, start in inside:
                part = self.buffer[start : start + parameter.numel()]
                parameter.grad = (part / dist.get_world_size()).view_as(parameter)

        return copy

    def finish(self):
        if self.inside:
            self.send()
        for done in self.sent:
            done.wait()
        self.sent = []


def model_of(width, layers, classes):
    blocks = [layer for _ in range(layers) for layer in (nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))]
    return nn.Sequential(*blocks, nn.Linear(width, classes))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--bucket", type=int, default=150_000)
    parser.add_argument("--wait", action="store_true")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = model_of(width=256, layers=6, classes=8)
    teacher = torch.randn(256, 8)
    buckets = Buckets(model, args.bucket, args.wait)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    torch.manual_seed(1 + rank)
    for step in range(1, args.steps + 1):
        inputs = torch.randn(32, 256)
        labels = (inputs @ teacher).argmax(dim=1)
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        buckets.finish()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0 and (step == 1 or step % 10 == 0):
            print(f"step {step} loss {loss.item():.4f} grad_norm {norm.item():.6f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
