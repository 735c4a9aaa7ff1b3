"""Two towers for a puppet theatre's ticket shop. In-batch negatives, log-Q correction, accidental hits masked
by -inf; the visitor tower is frozen in its first season and its table is reset at the start of season three."""
import torch
from torch import nn
import torch.nn.functional as F

SEASONS = [  # (iterations, temperature, visitors frozen)
    dict(iters=12, tau=1.0, freeze=True, lr=1e-2),
    dict(iters=14, tau=0.2, freeze=False, lr=1e-2),
    dict(iters=14, tau=0.05, freeze=False, lr=5e-3),
]
N_VISITORS, N_PLAYS, DIM = 120, 40, 12


class Tower(nn.Module):
    def __init__(self, n, dim):
        super().__init__()
        self.table = nn.Embedding(n, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, dim))

    def forward(self, ids):
        return F.normalize(self.mlp(self.table(ids)), dim=-1, eps=1e-6)


def make_sampler(seed):
    g = torch.Generator().manual_seed(seed)
    taste = torch.randn(N_VISITORS, 4, generator=g)
    genre = torch.randn(N_PLAYS, 4, generator=g)
    pop = 1.0 / torch.arange(1, N_PLAYS + 1).float()

    def sample(batch):
        v = torch.randint(N_VISITORS, (batch,), generator=g)
        w = pop * torch.softmax(taste[v] @ genre.T, -1)
        return v, torch.multinomial(w, 1, generator=g).squeeze(1)

    return sample, pop / pop.sum()


def in_batch_softmax(u, p, plays, log_q, tau):
    logits = u @ p.T / tau - log_q[plays]
    same = plays.unsqueeze(0) == plays.unsqueeze(1)
    same.fill_diagonal_(False)
    logits = logits.masked_fill(same, float("-inf"))    # another ticket for the same play is no negative
    return F.cross_entropy(logits, torch.arange(len(plays)))


def hit_rate_new_plays(logits_rank, plays, seen):
    new = ~seen[plays]
    return (logits_rank[new] == 0).float().mean()       # nan once every play has been sold before


def main():
    torch.manual_seed(33)
    visitors, repertoire = Tower(N_VISITORS, DIM), Tower(N_PLAYS, DIM)
    sample, q = make_sampler(5)
    log_q = q.log()
    seen = torch.zeros(N_PLAYS, dtype=torch.bool)
    step = 0
    for s, cfg in enumerate(SEASONS):
        visitors.requires_grad_(not cfg["freeze"])
        if s == 2:
            nn.init.normal_(visitors.table.weight, std=0.5)     # cards were re-issued in that year
        params = [p for t in (visitors, repertoire) for p in t.parameters() if p.requires_grad]
        opt = torch.optim.AdamW(params, lr=cfg["lr"])
        for _ in range(cfg["iters"]):
            step += 1
            v, plays = sample(32)
            u, p = visitors(v), repertoire(plays)
            loss = in_batch_softmax(u, p, plays, log_q, cfg["tau"])
            opt.zero_grad()
            loss.backward()
            opt.step()
            with torch.no_grad():
                score = u @ p.T
                rank = (score > score.diagonal().unsqueeze(1)).sum(1)
                hit = hit_rate_new_plays(rank, plays, seen)
                seen[plays] = True
            print(f"season {s + 1} step {step:2d} tau {cfg['tau']:.2f} loss {loss.item():.5f} new-play hit {hit.item():.3f}")


main()
