"""Sequence distillation for the offline ferry phrasebook. The teacher writes the targets (greedy), the student matches
its soft distribution at temperature T plus the hard sequence. T cools from 4 by a fixed amount each step: late in the
run the student should see the sharp teacher."""
import functools

import torch
import torch.nn as nn
import torch.nn.functional as F

V, TEACHER_W, STUDENT_W, LEN = 56, 64, 20, 8


def make_lm(width):
    return nn.ModuleDict({
        "emb": nn.Embedding(V, width),
        "rnn": nn.LSTM(width, width, batch_first=True),
        "out": nn.Linear(width, V),
    })


def logits_of(lm, ids):
    h, _ = lm["rnn"](lm["emb"](ids))
    return lm["out"](h)


def pretrain_teacher(lm, gen):
    """A handful of updates on the phrase grammar is enough to make it prefer something. Closed-form head only."""
    with torch.no_grad():
        ids = torch.randint(0, V, (64, LEN), generator=gen)
        h, _ = lm["rnn"](lm["emb"](ids))
        h = h.flatten(0, 1)
        want = F.one_hot((ids.flatten() * 3 + 1) % V, V).float() * 6 - 1
        gram = h.T @ h + 0.1 * torch.eye(h.size(1))
        lm["out"].weight.copy_(torch.linalg.solve(gram, h.T @ want).T)
        lm["out"].bias.zero_()
    return lm.requires_grad_(False)


@torch.no_grad()
def translate(lm, start):
    ids = start
    for _ in range(LEN):
        ids = torch.cat([ids, logits_of(lm, ids)[:, -1:].argmax(-1)], 1)
    return ids


def cooling(step, start=4.0, drop=0.125):
    return start - drop * step


def distil_loss(student_logits, teacher_logits, hard, T, mix):
    p = F.softmax(teacher_logits / T, -1)
    logq = F.log_softmax(student_logits / T, -1)
    soft = F.kl_div(logq, p, reduction="none").sum(-1).mean() * T * T
    return mix * soft + (1 - mix) * F.cross_entropy(student_logits.flatten(0, 1), hard.flatten())


def main(steps=40):
    torch.manual_seed(300)
    gen = torch.Generator().manual_seed(301)
    teacher = pretrain_teacher(make_lm(TEACHER_W), gen)
    student = make_lm(STUDENT_W)
    loss_fn = functools.partial(distil_loss, mix=0.7)
    opt = torch.optim.NAdam(student.parameters(), lr=5e-3)
    for step in range(1, steps + 1):
        ids = translate(teacher, torch.randint(0, V, (12, 1), generator=gen))
        src, hard = ids[:, :-1], ids[:, 1:]
        with torch.no_grad():
            t_logits = logits_of(teacher, src)
        T = cooling(step)
        loss = loss_fn(logits_of(student, src), t_logits, hard, T)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(student.parameters(), 0.5)
        opt.step()
        print(f"step {step:2d} T {T:6.3f} loss {loss.item():.6f}")
    print("student", sum(p.detach().double().sum().item() for p in student.parameters()))


if __name__ == "__main__":
    main()
