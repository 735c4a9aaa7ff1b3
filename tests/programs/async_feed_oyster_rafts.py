"""Oyster growth per raft, with readings that arrive from an asyncio feed.

The harbour's gateway speaks websockets; here a coroutine plays its part. The trainer is a coroutine
as well and awaits batches from a bounded queue.
"""
import asyncio
import random
from dataclasses import dataclass

import torch
from torch import nn

SEED, RAFTS, WEEKS, DIM = 7, 6, 10, 12
NEG_INF = float("-inf")


@dataclass
class Packet:
    number: int
    temp: torch.Tensor        # raft, week, 2 (temperature, chlorophyll)
    weeks_seen: torch.Tensor  # raft
    growth: torch.Tensor      # raft, shell growth in metres: tiny numbers on purpose


class RaftReader(nn.Module):
    def __init__(self):
        super().__init__()
        self.lift = nn.Linear(2, DIM)
        self.query = nn.Parameter(torch.randn(DIM) * 0.1)
        self.out = nn.Linear(DIM, 1)

    def forward(self, temp, weeks_seen):
        h = torch.tanh(self.lift(temp))
        score = h @ self.query
        late = torch.arange(WEEKS)[None] >= weeks_seen[:, None]
        # weeks that have not happened yet; each raft has at least one that has
        bias = torch.zeros(RAFTS, WEEKS).masked_fill(late, NEG_INF)
        att = torch.softmax(score + bias, dim=1)
        pooled = torch.einsum("rw,rwd->rd", att, h)
        return self.out(pooled).squeeze(1) * 1e-3


async def gateway(queue, count, rng):
    gen = torch.Generator().manual_seed(SEED)
    for number in range(count):
        temp = torch.rand(RAFTS, WEEKS, 2, generator=gen)
        seen = torch.tensor([rng.randint(1, WEEKS) for _ in range(RAFTS)])
        grown = 1e-3 * torch.stack([temp[r, : seen[r], 0].mean() for r in range(RAFTS)])
        await queue.put(Packet(number, temp, seen, grown))
        if rng.random() < 0.3:
            await asyncio.sleep(0)      # the link hiccups
    await queue.put(None)


async def packets(queue):
    while (packet := await queue.get()) is not None:
        yield packet
        queue.task_done()


async def trainer(queue, model):
    opt = torch.optim.NAdam(model.parameters(), lr=2e-2)
    best = float("inf")                 # nothing seen yet
    async for packet in packets(queue):
        opt.zero_grad(set_to_none=True)
        pred = model(packet.temp, packet.weeks_seen)
        loss = (pred - packet.growth).square().mean()     # metres squared, of the order of 1e-7
        (loss * 1e6).backward()                           # back to mm^2, so that Adam's eps does not rule
        opt.step()
        await asyncio.sleep(0)
        best = min(best, loss.item())
        print(f"packet {packet.number:02d}  loss {loss.item():.6e}  best {best:.6e}")


async def main():
    torch.manual_seed(SEED)
    rng = random.Random(SEED)
    queue = asyncio.Queue(maxsize=3)
    model = RaftReader()
    await asyncio.gather(gateway(queue, 40, rng), trainer(queue, model))
    print(f"weights sum to {sum(p.double().sum().item() for p in model.parameters()):.8f}")


if __name__ == "__main__":
    asyncio.run(main())
