# A king walks to the promotion square of a walled 7x7 board. Distance to the goal comes from retrograde
# analysis, one ply further back in every iteration; a small net learns the table as far as it is known.
import torch
from torch import nn

torch.manual_seed(64)
INF = float("inf")
SIDE = 7
WALLS = {(1, 1), (1, 2), (1, 3), (1, 4), (1, 5), (3, 0), (3, 1), (3, 3), (3, 4), (3, 5), (5, 5), (5, 6), (6, 5)}
GOAL = (0, 3)
squares = [(r, c) for r in range(SIDE) for c in range(SIDE) if (r, c) not in WALLS]
index = {sq: i for i, sq in enumerate(squares)}

reach = torch.full((len(squares), 8), -1, dtype=torch.long)
for (r, c), i in index.items():
    k = 0
    for dr in (-1, 0, 1):
        for dc in (-1, 0, 1):
            if (dr or dc) and (r + dr, c + dc) in index:
                reach[i, k] = index[(r + dr, c + dc)]
                k += 1

distance = torch.full((len(squares),), INF)
distance[index[GOAL]] = 0.0
cost = torch.where(reach >= 0, torch.ones(()), torch.tensor(INF))
board = torch.zeros(len(squares), 2 * SIDE)
for (r, c), i in index.items():
    board[i, r] = board[i, SIDE + c] = 1.0

trunk = nn.Sequential(nn.Linear(2 * SIDE, 32), nn.ReLU(), nn.Linear(32, 16), nn.Tanh())
value = nn.Linear(16, 1)
policy = nn.Linear(16, 8)
opts = [torch.optim.Adam(trunk.parameters(), lr=1e-2),
        torch.optim.SGD(value.parameters(), lr=5e-2),
        torch.optim.RMSprop(policy.parameters(), lr=5e-3)]

for ply in range(1, 33):
    one_back = (distance[reach.clamp(min=0)] + cost).min(dim=1).values
    distance = torch.minimum(distance, one_back)
    solved = torch.isfinite(distance)

    features = trunk(board)
    guess = value(features).squeeze(1)
    target = torch.where(solved, distance, torch.zeros(()))
    v_loss = (torch.where(solved, guess - target, torch.zeros(())) ** 2).sum() / solved.sum()

    logits = policy(features).masked_fill(reach < 0, -INF)
    logp = torch.log_softmax(logits, dim=1)
    best = (distance[reach.clamp(min=0)] + cost).argmin(dim=1)
    picked = logp.gather(1, best[:, None]).squeeze(1)
    movable = solved & (reach >= 0).any(dim=1)
    p_loss = -picked[movable].mean()

    for o in opts:
        o.zero_grad()
    (0.1 * v_loss + p_loss).backward()
    if ply % 12 == 0:                              # a fresh value head now and then
        nn.init.normal_(value.weight, std=2.0)
        nn.init.zeros_(value.bias)
        value.weight.grad.zero_()
    for o in opts:
        o.step()
    far = distance.max().item()
    print(f"ply {ply:2d}  solved {int(solved.sum()):2d}/{len(squares)}  longest {far}  "
          f"value {v_loss.item():9.4f}  policy {p_loss.item():.4f}")

print("sum of |w| in trunk and heads",
      round(sum(p.abs().sum().item() for m in (trunk, value, policy) for p in m.parameters()), 4))
