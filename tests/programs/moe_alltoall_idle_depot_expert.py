"""Parcel volume with a mixture of experts, one expert per rank (expert parallelism).

Every rank routes its own parcels, sends each to the rank of its expert with all_to_all, and gets the answers back. Router and
stem are replicated (DDP around that part of the model only), the experts are not; each rank steps its own expert.
"""
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

STEPS, PARCELS, WIDTH, LR = 28, 32, 12, 5e-3


class Exchange(torch.autograd.Function):
    """Rows go to the ranks by `send` and come from them by `recv`; the gradient goes the way back."""

    @staticmethod
    def forward(ctx, rows, send, recv):
        ctx.counts = send, recv
        out = rows.new_empty(sum(recv), rows.shape[1])
        dist.all_to_all_single(out, rows.contiguous(), output_split_sizes=recv, input_split_sizes=send)
        return out

    @staticmethod
    def backward(ctx, grad):
        send, recv = ctx.counts
        back = grad.new_empty(sum(send), grad.shape[1])
        dist.all_to_all_single(back, grad.contiguous(), output_split_sizes=send, input_split_sizes=recv)
        return back, None, None


class StemAndRouter(nn.Module):
    def __init__(self, experts):
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(5, WIDTH), nn.Tanh())
        self.router = nn.Linear(5, experts)
        # envelopes here, boxes there; they start apart and may learn to overlap
        with torch.no_grad():
            self.router.weight[:, 0] = torch.tensor([3.0, -3.0])
            self.router.bias.zero_()

    def forward(self, x):
        return self.stem(x), self.router(x).softmax(-1)


class DepotModel(nn.Module):
    def __init__(self, rank, world):
        super().__init__()
        self.rank, self.world = rank, world
        self.shared = DDP(StemAndRouter(world))
        torch.manual_seed(500 + rank)                 # the experts differ
        self.expert = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, 1))

    def forward(self, x):
        h, p = self.shared(x)
        choice = p.argmax(-1)
        order = choice.argsort(stable=True)
        send = torch.bincount(choice, minlength=self.world)
        recv = torch.empty_like(send)
        dist.all_to_all_single(recv, send)
        send, recv = send.tolist(), recv.tolist()
        answers = Exchange.apply(self.expert(Exchange.apply(h[order], send, recv)), recv, send)
        y = torch.empty_like(answers).index_copy(0, order, answers).squeeze(-1)
        gate = p.gather(1, choice[:, None]).squeeze(1)
        return y * gate, p, choice

    def confidence(self, p, choice):
        """How sure the router is about the parcels of each expert; we ask for about 0.9."""
        chosen = nn.functional.one_hot(choice, self.world).to(p.dtype)
        return (p * chosen).sum(0) / chosen.sum(0)


def parcels(rank):
    g = torch.Generator().manual_seed(60 + rank)
    for step in range(1, STEPS + 1):
        x = torch.randn(PARCELS, 5, generator=g)
        if rank == 1 and step == 13:
            x[:, 0] = 2.0 + x[:, 0].abs()             # the Monday mail shot: envelopes only, all much alike
            x[:, 1:] *= 0.3
        volume = torch.where(x[:, 0] > 0, 0.2 * x[:, 1], 1.0 + x[:, 2].abs() + 0.3 * x[:, 3])
        yield step, x, volume


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(4)
    model = DepotModel(rank, world)
    optimizer = torch.optim.Adam(model.parameters(), lr=LR)
    for step, x, volume in parcels(rank):
        y, p, choice = model(x)
        fit = (y - volume).square().mean()
        calm = (model.confidence(p, choice) - 0.9).square().sum()
        loss = fit + 0.1 * calm
        optimizer.zero_grad()
        loss.backward()
        for q in model.expert.parameters():           # it saw the parcels of all ranks, each a mean over its own
            q.grad /= world
        optimizer.step()
        if rank == 0:
            print(f"step {step:2d} loss {loss.item():.6f} fit {fit.item():.6f} routed {torch.bincount(choice, minlength=world).tolist()}")
    total = sum(q.detach().sum() for q in model.parameters())
    dist.all_reduce(total)
    if rank == 0:
        print(f"weights of both depots {total.item():.6f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
