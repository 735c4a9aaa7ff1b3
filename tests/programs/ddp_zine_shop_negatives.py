"""Two-tower recommender for a zine shop: sparse item table, sampled softmax with negatives from the same genre.

DDP reduces the sparse gradients of the item table; SparseAdam for it, AdamW for the rest.
"""
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

N_ITEMS, N_GENRES, HISTORY, NEGATIVES = 300, 10, 6, 12


class Catalogue:
    """Items, genres and sales counts (the proposal of the sampled softmax is sales ** 0.75)."""

    def __init__(self):
        g = torch.Generator().manual_seed(88)
        self.genre = torch.arange(N_ITEMS) % N_GENRES
        self.sales = torch.randint(1, 400, (N_ITEMS,), generator=g).float()
        # genre 7 (risograph poetry) is new: most of its titles have not sold a copy yet
        poetry = (self.genre == 7).nonzero().squeeze(1)
        self.sales[poetry[9:]] = 0.0
        self.proposal = self.sales.pow(0.75)

    def within(self, genre):
        q = self.proposal * (self.genre == genre)
        return q / q.sum()


class TwoTower(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.items = nn.Embedding(N_ITEMS, d, sparse=True)
        self.query = nn.Sequential(nn.Linear(d, 32), nn.SiLU(), nn.Linear(32, d))
        nn.init.normal_(self.items.weight, std=0.3)

    def forward(self, history, candidates):
        q = self.query(self.items(history).mean(1))
        return torch.einsum("bd,bcd->bc", q, self.items(candidates))


class Sessions:
    def __init__(self, catalogue, rank, batch=16, steps=40):
        self.cat, self.batch, self.steps, self.rank = catalogue, batch, steps, rank
        self.g = torch.Generator().manual_seed(600 + rank)

    def pick(self, genre, k):
        return torch.multinomial(self.cat.within(genre), k, generator=self.g)

    def __iter__(self):
        popular = [i for i in range(N_GENRES) if i != 7]
        for step in range(1, self.steps + 1):
            genres = [popular[int(torch.randint(len(popular), (), generator=self.g))] for _ in range(self.batch)]
            if self.rank == 1 and step == 15:
                genres[4] = 7           # first reader of the new genre
            rows = [self.pick(k, HISTORY + 1) for k in genres]
            yield step, genres, torch.stack(rows)


def draw_negatives(catalogue, genres, g):
    """per session, without replacement (Efraimidis-Spirakis keys); returns ids and log q for the logQ correction"""
    ids, logq = [], []
    for genre in genres:
        q = catalogue.within(genre)
        pool = q.nonzero().squeeze(1)
        keys = torch.rand(len(pool), generator=g).log() / q[pool]
        neg = pool[keys.argsort(descending=True)[:NEGATIVES]]
        ids.append(neg)
        logq.append((NEGATIVES * q[neg]).log())
    return torch.stack(ids), torch.stack(logq)


def sampled_softmax(scores, logq, positive, negatives):
    pos, neg = scores[:, :1], scores[:, 1:] - logq
    neg = neg.masked_fill(negatives == positive[:, None], float("-inf"))    # accidental hits
    return F.cross_entropy(torch.cat([pos, neg], 1), torch.zeros(len(pos), dtype=torch.long))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(3)
    catalogue = Catalogue()
    net = TwoTower()
    model = DDP(net)
    opts = [torch.optim.SparseAdam(list(net.items.parameters()), lr=0.02),
            torch.optim.AdamW(net.query.parameters(), lr=5e-3)]
    g = torch.Generator().manual_seed(40 + rank)
    for step, genres, sessions in Sessions(catalogue, rank):
        history, positive = sessions[:, :HISTORY], sessions[:, HISTORY]
        negatives, logq = draw_negatives(catalogue, genres, g)
        scores = model(history, torch.cat([positive[:, None], negatives], 1))
        loss = sampled_softmax(scores, logq, positive, negatives)
        for o in opts:
            o.zero_grad()
        loss.backward()
        for o in opts:
            o.step()
        if rank == 0:
            print(f"step {step:02d} sampled softmax {loss.item():.6f}", flush=True)
    if rank == 0:
        print("weights", sum(p.detach().double().sum().item() for p in net.parameters()), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
