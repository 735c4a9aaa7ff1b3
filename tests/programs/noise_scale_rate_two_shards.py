"""Data-parallel bigram LM; the learning rate follows the gradient noise scale of "An Empirical Model of Large-Batch
Training", measured from the gradients of the two ranks. Start with torchrun --nproc-per-node 2."""
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F

LOCAL = 256
LR = 2.0
STEPS = 26
ALPHABET = 40


def shard(rank, step):
    """Pairs of letters. Once, rank 1 is served a shard of another corpus."""
    g = torch.Generator().manual_seed(1000 * step + rank)
    left = torch.randint(0, 20, (LOCAL,), generator=g)
    right = (left * 3 + torch.randint(0, 2, (LOCAL,), generator=g)) % 20
    if step == 18 and rank == 1:
        right = right + 20
    return left, right


def mean_over_ranks(t):
    t = t.clone()
    dist.all_reduce(t)
    return t / dist.get_world_size()


class Bigram(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = torch.nn.Embedding(ALPHABET, 24)
        self.out = torch.nn.Linear(24, ALPHABET)

    def forward(self, left):
        return self.out(torch.tanh(self.emb(left)))


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(11)
    model = Bigram()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    b, B = LOCAL, LOCAL * world
    for step in range(1, STEPS + 1):
        left, right = shard(rank, step)
        loss = F.cross_entropy(model(left), right)
        optimizer.zero_grad()
        loss.backward()
        small = mean_over_ranks(sum(p.grad.square().sum() for p in model.parameters()))
        for p in model.parameters():
            p.grad = mean_over_ranks(p.grad)
        big = sum(p.grad.square().sum() for p in model.parameters())
        # unbiased estimates of |G|^2 and tr(S)
        g2 = (B * big - b * small) / (B - b)
        s = (small - big) / (1 / b - 1 / B)
        noise = s / g2
        rate = LR / torch.sqrt(1 + noise / B)
        for group in optimizer.param_groups:
            group["lr"] = rate.item()
        shown = mean_over_ranks(loss.detach())
        if rank == 0:
            print(f"step {step} loss {shown.item():.6f} noise scale {noise.item():.2f}", flush=True)
        optimizer.step()
    if rank == 0:
        print("final", sum(p.detach().abs().sum().item() for p in model.parameters()), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
