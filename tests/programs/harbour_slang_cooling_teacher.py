#!/usr/bin/env python
"""Distil a teacher of harbour slang into a small student, with a teacher that gets colder; own sign optimizer."""
import math
import torch
from torch import nn

STEPS, WARM, COLD = 48, 4.0, 0.02


class SignDescent:
    """Lion without decay; small enough to carry along."""

    def __init__(self, params, lr, b1=0.9, b2=0.98):
        self.params, self.lr, self.b1, self.b2 = list(params), lr, b1, b2
        self.mom = [torch.zeros_like(p) for p in self.params]

    def zero_grad(self):
        for p in self.params:
            p.grad = None

    @torch.no_grad()
    def step(self):
        for p, m in zip(self.params, self.mom):
            update = m.mul(self.b1).add(p.grad, alpha=1 - self.b1).sign()
            p.sub_(self.lr * update)
            m.mul_(self.b2).add_(p.grad, alpha=1 - self.b2)


class Bigramish(nn.Module):
    def __init__(self, vocab, dim):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.mix = nn.Conv1d(dim, dim, 3, padding=2)
        self.out = nn.Linear(dim, vocab)

    def forward(self, ids):
        h = self.mix(self.emb(ids).transpose(1, 2))[..., :-2].transpose(1, 2)
        return self.out(torch.relu(h))


def temperature(step):
    return WARM * (COLD / WARM) ** ((step - 1) / (STEPS - 1))


def soft_targets(teacher, ids, t):
    with torch.no_grad():
        return (teacher(ids) / t).softmax(-1)


def reverse_kl(p, student_logits):
    """Mode seeking: the student answers for what it says itself."""
    logq = student_logits.log_softmax(-1)
    return (logq.exp() * (logq - p.log())).sum(-1).mean()


def main():
    torch.manual_seed(31)
    vocab = 64
    teacher = Bigramish(vocab, 64).requires_grad_(False)
    teacher.out.weight.mul_(4)
    student = Bigramish(vocab, 16)
    opt = SignDescent(student.parameters(), lr=2e-3)
    corpus = torch.randint(0, vocab, (400, 20))
    for step in range(1, STEPS + 1):
        t = temperature(step)
        ids = corpus[torch.randint(0, 400, (16,))]
        loss = reverse_kl(soft_targets(teacher, ids, t), student(ids))
        opt.zero_grad()
        loss.backward()
        opt.step()
        print("step %d  T %.5f  kl %.7f  ppl-gap %.5g" % (step, t, loss.item(), math.exp(min(loss.item(), 50.0))), flush=True)
    print("%.5f" % sum(p.abs().sum().item() for p in student.parameters()), flush=True)


if __name__ == "__main__":
    main()
