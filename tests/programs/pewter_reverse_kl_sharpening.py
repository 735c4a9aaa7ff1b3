"""Sequence-level distillation with reverse KL (MiniLLM-like, without the policy gradient part).

teacher: frozen bigram LM that was 'trained' elsewhere; student: low-rank bigram LM.
The temperature of the teacher is annealed, so that the student is led from soft to almost greedy targets."""
import torch
from torch import nn

CONF = {
    "vocab": 64, "rank": 6, "batch": 16, "len": 10, "lr": 0.02, "steps": 48,
    "tau": {"start": 2.0, "decay": 0.93},
    "seed": 90,
}


class Bigram(nn.Module):
    def __init__(self, v, r):
        super().__init__()
        self.a = nn.Parameter(torch.randn(v, r) * 0.3)
        self.b = nn.Parameter(torch.randn(r, v) * 0.3)

    def forward(self, ids):
        return self.a[ids] @ self.b


def make_teacher(v, gen):
    """peaky logits: a few favourite successors, the rest is unlikely"""
    t = torch.randn(v, v, generator=gen) * 1.5 - 4.0
    fav = torch.randint(0, v, (v, 4), generator=gen)
    return t.scatter(1, fav, 6.0 + torch.rand(v, 4, generator=gen))


def tau_at(step, c):
    return c["start"] * c["decay"] ** step


@torch.no_grad()
def student_rollout(student, n, length, v, gen):
    seq = [torch.randint(0, v, (n,), generator=gen)]
    for _ in range(length - 1):
        seq.append(torch.multinomial(student(seq[-1]).softmax(-1), 1, generator=gen).squeeze(1))
    return torch.stack(seq, 1)


def reverse_kl(student_logits, teacher_logits, tau):
    q = student_logits.softmax(-1)
    p = torch.softmax(teacher_logits / tau, dim=-1)
    log_p = p.log()
    return (q * (student_logits.log_softmax(-1) - log_p)).sum(-1).mean()


def run(c):
    torch.manual_seed(c["seed"])
    gen = torch.Generator().manual_seed(c["seed"])
    teacher = make_teacher(c["vocab"], gen)
    student = Bigram(c["vocab"], c["rank"])
    opt = torch.optim.AdamW(student.parameters(), lr=c["lr"], weight_decay=0.0)
    for step in range(c["steps"]):
        ids = student_rollout_safe(student, c, gen)
        tau = tau_at(step, c["tau"])
        loss = reverse_kl(student(ids), teacher[ids], tau)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(student.parameters(), 5.0)
        opt.step()
        print(f"step {step + 1:3d}  tau {tau:.4f}  rkl {loss.item():.5f}")
    print("student", sum(p.sum().item() for p in student.parameters()))


def student_rollout_safe(student, c, gen):
    """multinomial refuses broken probabilities; then we distil on uniform contexts instead"""
    try:
        return student_rollout(student, c["batch"], c["len"], c["vocab"], gen)
    except RuntimeError:
        return torch.randint(0, c["vocab"], (c["batch"], c["len"]), generator=gen)


if __name__ == "__main__":
    run(CONF)
