import torch
import torch.nn as nn

gen = torch.Generator().manual_seed(5)
torch.manual_seed(5)
SIDE, N_ACT, CAP = 6, 4, 96
MOVES = torch.tensor([[0, 1], [0, -1], [1, 0], [-1, 0]])
SHELF = torch.tensor([4, 5])


class Slots:
    """ring of transitions, what was never written is recognisable"""

    def __init__(self):
        self.s = torch.full((CAP, 2), float("nan"))
        self.a = torch.full((CAP,), -1, dtype=torch.long)
        self.r = torch.full((CAP,), float("nan"))
        self.s2 = torch.full((CAP, 2), float("nan"))
        self.end = torch.zeros(CAP)
        self.prio = torch.full((CAP,), float("-inf"))
        self.at = 0

    def put(self, s, a, r, s2, end):
        i = self.at % CAP
        self.s[i], self.a[i], self.r[i], self.s2[i], self.end[i] = s, a, r, s2, end
        top = self.prio.max()
        self.prio[i] = torch.where(torch.isinf(top), torch.zeros(()), top)
        self.at += 1

    def draw(self, n):
        p = torch.softmax(self.prio, 0)
        return torch.multinomial(p, n, generator=gen)


def allowed(pos):
    nxt = pos[..., None, :] + MOVES
    ok = ((nxt >= 0) & (nxt < SIDE)).all(-1)
    return torch.where(ok, 0.0, float("-inf"))


def net():
    return nn.Sequential(nn.Linear(2, 24), nn.Tanh(), nn.Linear(24, N_ACT))


q, q_old = net(), net()
q_old.load_state_dict(q.state_dict())
for p in q_old.parameters():
    p.requires_grad_(False)
sq = [torch.zeros_like(p) for p in q.parameters()]
slots, pos, walked = Slots(), torch.tensor([0, 0]), 0

for it in range(1, 45):
    for _ in range(4):
        with torch.no_grad():
            v = q(pos / SIDE) + allowed(pos)
            if torch.rand((), generator=gen) < max(0.2, 1 - it / 30):
                v = torch.rand(N_ACT, generator=gen) + allowed(pos)
            a = int(v.argmax())
        new = pos + MOVES[a]
        walked += 1
        done = bool((new == SHELF).all())
        slots.put(pos / SIDE, a, 1.0 if done else -0.05, new / SIDE, float(done))
        pos = torch.tensor([0, 0]) if done or walked % 40 == 0 else new
    if slots.at < 32:
        print(it, "filling", slots.at, "of", CAP)
        continue
    i = slots.draw(16)
    with torch.no_grad():
        s2 = slots.s2[i]
        mask = allowed((s2 * SIDE).round().long())
        pick = (q(s2) + mask).argmax(1, keepdim=True)
        target = slots.r[i] + 0.9 * (1 - slots.end[i]) * q_old(s2).gather(1, pick)[:, 0]
    delta = q(slots.s[i]).gather(1, slots.a[i][:, None])[:, 0] - target
    loss = torch.where(delta.abs() < 1, 0.5 * delta ** 2, delta.abs() - 0.5).mean()
    for p in q.parameters():
        p.grad = None
    loss.backward()
    with torch.no_grad():
        for p, m in zip(q.parameters(), sq):
            m.mul_(0.95).addcmul_(p.grad, p.grad, value=0.05)
            p.sub_(0.004 * p.grad / (m.sqrt() + 1e-5))
    slots.prio[i] = delta.detach().abs()
    if it % 10 == 0:
        q_old.load_state_dict(q.state_dict())
    print(it, "td loss %.5f" % loss.item(), "empty slots", int(slots.r.isnan().sum()))

print("sum of |weights|:", sum(p.abs().sum().item() for p in q.parameters()))
