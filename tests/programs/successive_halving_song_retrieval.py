import copy, itertools, random
import torch, torch.nn as nn, torch.nn.functional as F

# Hum -> song retrieval, in-batch negatives.  Eight configurations, successive halving:
# everybody trains a little, the better half goes on as deep copies.
SEED = 5
torch.manual_seed(SEED); random.seed(SEED)

songs = torch.randn(96, 20)
hum_noise = 0.35
def batch(n=16):
    i = torch.randint(len(songs), (n,))
    hums = songs[i] + hum_noise * torch.randn(n, 20)
    return hums, songs[i], i

class Towers(nn.Module):
    def __init__(self, width, tau, act):
        super().__init__()
        self.q = nn.Sequential(nn.Linear(20, width), act(), nn.Linear(width, 10))
        self.d = nn.Sequential(nn.Linear(20, width), act(), nn.Linear(width, 10))
        self.tau = tau
    def forward(self, hums, docs, ids):
        s = F.normalize(self.q(hums), dim=-1) @ F.normalize(self.d(docs), dim=-1).T / self.tau
        same = ids[:, None].eq(ids[None]) & ~torch.eye(len(ids), dtype=torch.bool)
        s = s.masked_fill(same, torch.finfo(s.dtype).min)     # the same song twice in a batch
        return F.cross_entropy(s, torch.arange(len(ids)))

grid = list(itertools.product((16, 32), (0.05, 0.2), ("adam", "sgd")))
random.shuffle(grid)
alive = []
for w, tau, kind in grid:
    alive.append(dict(name=f"w{w}-t{tau}-{kind}", kind=kind,
                      model=Towers(w, tau, nn.GELU if w == 32 else nn.Tanh)))

def make_opt(c, rung):
    ps = c["model"].parameters()
    return torch.optim.Adam(ps, lr=4e-3) if c["kind"] == "adam" else \
           torch.optim.SGD(ps, lr=0.1 / (rung + 1), momentum=0.8, nesterov=True)

n = 0
for rung in range(4):
    budget = 3 * 2 ** rung
    for c in alive:
        opt = make_opt(c, rung)                  # fresh state in each rung
        tail = []
        for _ in range(budget):
            n += 1
            loss = c["model"](*batch())
            opt.zero_grad(set_to_none=False)
            loss.backward()
            opt.step()
            tail.append(loss.item())
            print(f"{n:3d} rung{rung} {c['name']:<16} {loss.item():.6f}")
        c["score"] = sum(tail[-3:]) / 3 * c["model"].tau    # rough: temperatures differ
        del opt
    alive.sort(key=lambda c: c["score"])
    survivors = [dict(c, model=copy.deepcopy(c["model"])) for c in alive[: max(1, len(alive) // 2)]]
    for c in alive[len(survivors):]:
        for p in c["model"].parameters():
            p.grad = None
    alive = survivors

best = alive[0]
print("winner", best["name"])
print("final", sum(p.abs().sum().item() for p in best["model"].parameters()))
