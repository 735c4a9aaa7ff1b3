# two-tower recommender for a seed swap: gardener -> variety, sampled softmax with correction for popularity
import torch
from torch import nn, optim

N_GARDENERS, N_VARIETIES, DIM, SHARDS = 60, 80, 12, 3
torch.manual_seed(0)

# how likely a variety is to be drawn as a negative by one shard; the house lettuce always is
popularity = 1.0 / torch.arange(1, N_VARIETIES + 1).float()
inclusion = (popularity * 4.0).clamp(max=1.0)


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.gardener = nn.Embedding(N_GARDENERS, DIM, sparse=True)
        self.variety = nn.Embedding(N_VARIETIES, DIM, sparse=True)
        self.soil = nn.Linear(3, DIM)
        self.query = nn.Sequential(nn.Linear(DIM, 24), nn.ReLU(), nn.Linear(24, DIM))

    def ask(self, who, soil):
        return self.query(self.gardener(who) + self.soil(soil))


def draw_negatives():
    hit = torch.zeros(N_VARIETIES, dtype=torch.bool)
    for _ in range(SHARDS):
        hit |= torch.rand(N_VARIETIES) < inclusion
    return hit.nonzero().flatten()


def log_chance(items):
    """log of the chance that at least one of the shards draws the item, 1 - (1 - p)^SHARDS"""
    return torch.log(-torch.expm1(SHARDS * torch.log1p(-inclusion[items])))


def swaps(n, taste):
    who = torch.randint(0, N_GARDENERS, (n,))
    soil = torch.randn(n, 3)
    what = torch.multinomial(popularity * torch.exp(2 * taste[who]), 1).squeeze(1)
    return who, soil, what


model = Towers()
taste = torch.randn(N_GARDENERS, N_VARIETIES)
rows = optim.SparseAdam(list(model.gardener.parameters()) + list(model.variety.parameters()), lr=0.02)
dense = optim.Adam(list(model.soil.parameters()) + list(model.query.parameters()), lr=0.005)

week = 0
while week < 36:
    week += 1
    if week == 20:
        # the catalogue is renumbered: the tail of the varieties starts from new vectors
        with torch.no_grad():
            model.variety.weight[60:] = 0.1 * torch.randn(20, DIM)
    who, soil, what = swaps(32, taste)
    if week % 9 == 0:
        what = torch.zeros_like(what)       # the week in which everyone swaps lettuce
    negatives = draw_negatives()
    q = model.ask(who, soil)
    positive = (q * model.variety(what)).sum(-1) - log_chance(what)
    others = q @ model.variety(negatives).t() - log_chance(negatives)
    others = others.masked_fill(what[:, None] == negatives[None, :], float("-inf"))
    logits = torch.cat([positive[:, None], others], dim=1)
    loss = nn.functional.cross_entropy(logits, torch.zeros(len(what), dtype=torch.long))
    rows.zero_grad()
    dense.zero_grad()
    loss.backward()
    rows.step()
    if week % 2 == 0:
        dense.step()
    print("week", week, "negatives", len(negatives), "loss %.4f" % loss.item())

print("magnitude of all weights %.4f" % sum(p.detach().abs().sum().item() for p in model.parameters()))
