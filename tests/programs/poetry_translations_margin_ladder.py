"""Reward model for translations of poems. Pairs with a difference in stars, Bradley-Terry with a margin that rises rung by
rung, so that clear preferences come to be far apart. The optimizer is our own (sign-free momentum with decay)."""
import sys

import torch
from torch import nn
from transformers import GPT2Config, GPT2Model


class HeavyBall:
    def __init__(self, params, lr, momentum=0.8, decay=1e-3):
        self.params = [p for p in params if p.requires_grad]
        self.lr, self.momentum, self.decay = lr, momentum, decay
        self.velocity = [torch.zeros_like(p) for p in self.params]

    def zero_grad(self):
        for p in self.params:
            p.grad = None

    @torch.no_grad()
    def step(self):
        total = torch.sqrt(sum((p.grad ** 2).sum() for p in self.params if p.grad is not None))
        shrink = min(1.0, 1.0 / (float(total) + 1e-6))
        for p, v in zip(self.params, self.velocity):
            if p.grad is None:
                continue
            v.mul_(self.momentum).add_(p.grad, alpha=shrink)
            p.mul_(1 - self.lr * self.decay).sub_(v, alpha=self.lr)


class RewardModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = GPT2Model(GPT2Config(vocab_size=64, n_positions=32, n_embd=32, n_layer=2, n_head=4, resid_pdrop=0.0,
                                         embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False))
        self.score = nn.Linear(32, 1, bias=False)

    def forward(self, ids):
        h = self.body(input_ids=ids).last_hidden_state
        return self.score(h[:, -1]).squeeze(-1)


def pairs(n, gen):
    """A translation keeps words of its original; the share that it keeps makes its stars."""
    poem = torch.randint(0, 32, (n, 6), generator=gen)
    def translate(kept):
        words = torch.randint(32, 64, (n, 6), generator=gen)
        hold = torch.arange(6)[None] < kept[:, None]
        return torch.where(hold, poem + 32, words)
    worse = torch.randint(0, 3, (n,), generator=gen)
    better = worse + 1 + torch.randint(0, 4, (n,), generator=gen).clamp(max=3)
    return torch.cat([poem, translate(better)], 1), torch.cat([poem, translate(worse)], 1), (better - worse).float()


def rung(step, first=0.5, every=3, factor=1.8):
    return first * factor ** (step // every)


def preference_loss(chosen, rejected, margin):
    p = torch.sigmoid(chosen - rejected - margin)
    return -torch.log(p).mean(), (chosen > rejected).float().mean()


def main(steps=45):
    torch.manual_seed(1812)
    gen = torch.Generator().manual_seed(1813)
    model = RewardModel()
    opt = HeavyBall(model.parameters(), lr=0.02)
    for step in range(1, steps + 1):
        good, bad, stars = pairs(16, gen)
        margin = rung(step) * stars
        both = model(torch.cat([good, bad]))
        loss, accuracy = preference_loss(both[:16], both[16:], margin)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sys.stdout.write("%d rung %.4f loss %.6f acc %.4f\n" % (step, rung(step), loss.item(), accuracy.item()))
        sys.stdout.flush()
    print(sum(p.detach().abs().sum().item() for p in model.parameters()), flush=True)


if __name__ == "__main__":
    main()
