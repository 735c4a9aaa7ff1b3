"""A two-layer character model of riddles whose second feed-forward is a mixture of four experts."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

RIDDLES = (
    "what has keys but opens no door? a piano. "
    "what has hands but cannot clap? a clock. "
    "what has a neck but no head? a bottle. "
    "what gets wetter the more it dries? a towel. "
    "what has one eye but cannot see? a needle. "
)


class SwitchFFN(nn.Module):
    """Top-1 routing. Every expert has a fixed number of slots, so that all of them run as one batched product."""

    def __init__(self, width, experts, slots_per_expert):
        super().__init__()
        self.router = nn.Linear(width, experts, bias=False)
        self.w_in = nn.Parameter(torch.randn(experts, width, 2 * width) * width ** -0.5)
        self.w_out = nn.Parameter(torch.randn(experts, 2 * width, width) * (2 * width) ** -0.5)
        self.experts, self.slots_per_expert = experts, slots_per_expert

    def forward(self, x):
        flat = x.reshape(-1, x.shape[-1])
        gate, choice = self.router(flat).softmax(-1).max(-1)
        ticket = F.one_hot(choice, self.experts).cumsum(0).gather(1, choice[:, None])[:, 0] - 1
        slots = flat.new_zeros(self.experts, self.slots_per_expert, flat.shape[-1])
        slots[choice, ticket] = flat
        hidden = torch.relu(torch.bmm(slots, self.w_in))
        out = torch.bmm(hidden, self.w_out)
        self.load = torch.bincount(choice, minlength=self.experts)
        return (out[choice, ticket] * gate[:, None]).view_as(x)


class RiddleLM(nn.Module):
    def __init__(self, vocab, width, block, experts, slots):
        super().__init__()
        self.tok = nn.Embedding(vocab, width)
        self.pos = nn.Parameter(0.02 * torch.randn(block, width))
        self.attn = nn.MultiheadAttention(width, 4, batch_first=True)
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.moe = SwitchFFN(width, experts, slots)
        self.head = nn.Linear(width, vocab)
        self.register_buffer("future", torch.ones(block, block).triu(1).bool())

    def forward(self, ids):
        h = self.tok(ids) + self.pos
        a = self.n1(h)
        h = h + self.attn(a, a, a, attn_mask=self.future, need_weights=False)[0]
        h = h + self.moe(self.n2(h))
        return self.head(h)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=40)
    ap.add_argument("--lr", type=float, default=8e-3)
    ap.add_argument("--block", type=int, default=24)
    ap.add_argument("--batch", type=int, default=12)
    ap.add_argument("--capacity_factor", type=float, default=1.9)
    args = ap.parse_args()

    torch.manual_seed(14)
    letters = sorted(set(RIDDLES))
    ids = torch.tensor([letters.index(c) for c in RIDDLES])
    experts = 4
    slots = int(args.capacity_factor * args.batch * args.block / experts)
    model = RiddleLM(len(letters), 32, args.block, experts, slots)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)

    for step in range(1, args.steps + 1):
        at = torch.randint(0, len(ids) - args.block - 1, (args.batch,))
        x = torch.stack([ids[i:i + args.block] for i in at])
        y = torch.stack([ids[i + 1:i + args.block + 1] for i in at])
        logits = model(x)
        loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        print(f"step {step:3d} | nats/char {loss.item():.4f} | tokens per expert {model.moe.load.tolist()}")

    print("total weight magnitude", sum(p.abs().sum().item() for p in model.parameters()))


if __name__ == "__main__":
    main()
