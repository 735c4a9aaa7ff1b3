import random
import torch

random.seed(8)
torch.manual_seed(8)
GAMES, MEMBERS, DIM, NEG = 60, 44, 6, 16

# who has played what
played = []
for m in range(MEMBERS):
    k = 50 if m == 27 else random.randint(5, 14)
    kind = m % 3
    pool = [g for g in range(GAMES) if g % 3 == kind or random.random() < 0.25]
    played.append(set(random.sample(range(GAMES), k)) if k > 20 else set(random.sample(pool, min(k, len(pool)))))
print("plays", sum(map(len, played)), "members", MEMBERS)


class Factors(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.member = torch.nn.Embedding(MEMBERS, DIM)
        self.game = torch.nn.Embedding(GAMES, DIM)
        self.bias = torch.nn.Embedding(GAMES, 1)
        for e in (self.member, self.game, self.bias):
            torch.nn.init.normal_(e.weight, std=0.1)

    def forward(self, m, games):
        return self.game(games) @ self.member(m) + self.bias(games).squeeze(1)


def pairs_of(m):
    liked = sorted(played[m])
    others = [g for g in range(GAMES) if g not in played[m]]
    rejected = random.sample(others, NEG)
    return torch.tensor(liked), torch.tensor(rejected)


model = Factors()
squares = [torch.zeros_like(p) for p in model.parameters()]


def adagrad(lr=0.1):
    for p, s in zip(model.parameters(), squares):
        s += p.grad ** 2
        p.data -= lr * p.grad / (s.sqrt() + 1e-6)
        p.grad = None


for m in range(MEMBERS - 4):
    liked, rejected = pairs_of(m)
    user = torch.tensor(m)
    gap = model(user, liked)[:, None] - model(user, rejected)[None, :]
    loss = torch.nn.functional.softplus(-gap).mean()
    loss.backward()
    adagrad()
    print("member", m + 1, "bpr %.5f" % loss.item())

print("sum of squares of the factors", sum((p ** 2).sum().item() for p in model.parameters()))
