"""
Distil a menu translator: student matches the teacher at a falling temperature.
Words of allergens are banned in the teacher's output (logit -inf), the student is free to learn that.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

VOCAB, BANNED, STEPS = 80, torch.tensor([3, 14, 15, 92 % 80, 65]), 45
torch.manual_seed(21)
torch.set_printoptions(precision=6)


def make_net(width, depth):
    layers = [nn.Embedding(VOCAB, width), nn.Flatten(1)]
    size = 4 * width
    for _ in range(depth):
        layers += [nn.Linear(size, 2 * width), nn.SiLU()]
        size = 2 * width
    return nn.Sequential(*layers, nn.Linear(size, VOCAB))


def censor(logits):
    """-inf on purpose: softmax gives these words exactly 0."""
    out = logits.clone()
    out[:, BANNED] = float("-inf")
    return out


def make_temperature(start, end, steps):
    def at(step):
        return start * (end / start) ** (step / (steps - 1))
    return at


def make_distiller(teacher, student, temperature):
    def loss_at(step, dishes):
        T = temperature(step)
        with torch.no_grad():
            t_logits = censor(teacher(dishes)) * 3.0
            target = F.softmax(t_logits / T, dim=-1)
        s_logp = F.log_softmax(student(dishes) / T, dim=-1)
        # 0 * log 0 counts as 0 in kl_div
        kl = F.kl_div(s_logp, target, reduction="none").sum(-1)
        return kl.mean() * T * T, t_logits, s_logp
    return loss_at


def report(step, loss, t_logits, s_logp, T):
    with torch.no_grad():
        # spread of the teacher is infinite where a word is banned; kept in the table for the paper
        spread = (t_logits.max(-1).values - t_logits.min(-1).values).mean()
        leak = s_logp[:, BANNED].exp().sum(-1).mean()
        # log-ratio of banned mass: -inf - finite
        ratio = (torch.log_softmax(t_logits / T, -1)[:, BANNED] - s_logp[:, BANNED]).mean()
    print(f"{step:3d} | T {T:6.3f} | kl {loss.item():.7f} | spread {spread.item()} | leak {leak.item():.6f} "
          f"| ratio {ratio.item()}")


teacher = make_net(32, 2).requires_grad_(False).eval()
student = make_net(12, 1)
temperature = make_temperature(12.0, 0.8, STEPS)
distil = make_distiller(teacher, student, temperature)
opt = torch.optim.RMSprop(student.parameters(), lr=4e-3)
g = torch.Generator().manual_seed(4)
dishes_pool = torch.randint(0, VOCAB, (256, 4), generator=g)

for step in range(STEPS):
    rows = torch.randint(0, 256, (32,), generator=g)
    loss, t_logits, s_logp = distil(step, dishes_pool[rows])
    opt.zero_grad()
    loss.backward()
    opt.step()
    report(step + 1, loss, t_logits, s_logp, temperature(step))

print("student weights:", sum(p.detach().double().sum().item() for p in student.parameters()))
