"""Generalised JSD distillation (GKD): the skew beta walks from the reverse KL (0) to the forward KL (1).

At both ends one half of the mixture has weight zero; its log is -inf, which logsumexp takes as it should.
"""
from itertools import islice

import torch
from torch import nn

torch.set_num_threads(1)


def build(width, seed, vocab=48):
    torch.manual_seed(seed)
    return nn.ModuleDict({
        "emb": nn.Embedding(vocab, width),
        "mix": nn.Conv1d(width, width, 4),
        "out": nn.Linear(width, vocab),
    })


def run(net, ids):
    x = net["emb"](ids).transpose(1, 2)
    x = nn.functional.pad(x, (3, 0))
    return net["out"](torch.tanh(net["mix"](x)).transpose(1, 2))


def peals(vocab=48, batch=6, length=16):
    """Change ringing: bells swap neighbours from one row to the next."""
    g = torch.Generator().manual_seed(9)
    while True:
        rows = torch.stack([torch.randperm(8, generator=g) for _ in range(batch)])
        swap = rows.clone()
        swap[:, 0::2], swap[:, 1::2] = rows[:, 1::2], rows[:, 0::2]
        yield torch.cat([rows, swap + 8], 1)[:, :length]


def generalized_jsd(student_logits, teacher_logits, beta, temperature=1.5):
    s = torch.log_softmax(student_logits / temperature, -1)
    t = torch.log_softmax(teacher_logits / temperature, -1)
    b = torch.tensor(beta)
    mixture = torch.logsumexp(torch.stack([s + torch.log1p(-b), t + torch.log(b)]), dim=0)
    kl_teacher = (t.exp() * (t - mixture)).sum(-1)
    kl_student = (s.exp() * (s - mixture)).sum(-1)
    return (b * kl_teacher + (1 - b) * kl_student).mean()


def pretrain_teacher(net, batches, lr=0.01):
    opt = torch.optim.Adam(net.parameters(), lr=lr)
    for ids in batches:
        logits = run(net, ids)[:, :-1]
        loss = nn.functional.cross_entropy(logits.reshape(-1, 48), ids[:, 1:].reshape(-1))
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss.item()


def main(total=41):
    stream = peals()
    teacher, student = build(40, 1), build(20, 2)
    print(f"teacher after 15: {pretrain_teacher(teacher, islice(stream, 15)):.6f}")
    teacher.requires_grad_(False)
    opt = torch.optim.NAdam(student.parameters(), lr=0.006)
    for k, ids in enumerate(islice(stream, total)):
        beta = k / (total - 1)
        loss = generalized_jsd(run(student, ids), run(teacher, ids), beta)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"{k + 1:3d} beta {beta:.3f} jsd {loss.item():.8f}")
    print("weights", sum(p.double().sum().item() for p in student.parameters()))


main()
