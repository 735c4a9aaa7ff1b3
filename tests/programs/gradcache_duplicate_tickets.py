"""Ticket search: bi-encoder, InfoNCE over 24 pairs with GradCache in chunks of 6, and a repulsion term.

GradCache: 1) embed without graph, 2) loss on the cached vectors, keep d loss / d vector, 3) embed chunk by chunk with graph
and push the kept gradient through.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

SEED, VOCAB, WORDS, BATCH, CHUNK = 12, 90, 7, 24, 6
torch.manual_seed(SEED)


class Encoder(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.table = nn.EmbeddingBag(VOCAB, dim, mode="mean")
        self.body = nn.Sequential(nn.Linear(dim, 48), nn.Tanh(), nn.Linear(48, dim))

    def forward(self, ids):
        return F.normalize(self.body(self.table(ids)), dim=-1)


class ContrastiveLoss(nn.Module):
    def __init__(self, temperature=0.07, repel=0.1, reach=0.6):
        super().__init__()
        self.temperature, self.repel, self.reach = temperature, repel, reach

    def repulsion(self, q):
        # neighbours in the batch should be at least `reach` apart
        gap = q - q.roll(1, dims=0)
        dist = gap.pow(2).sum(-1).sqrt()
        return F.relu(self.reach - dist).mean()

    def forward(self, q, d):
        logits = q @ d.T / self.temperature
        target = torch.arange(len(q))
        both = F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)
        return 0.5 * both + self.repel * self.repulsion(q)


class GradCache:
    def __init__(self, encoders, loss_fn, chunk):
        self.encoders, self.loss_fn, self.chunk = encoders, loss_fn, chunk

    @torch.no_grad()
    def embed(self, encoder, ids):
        return torch.cat([encoder(part) for part in ids.split(self.chunk)])

    def __call__(self, *inputs):
        cached = [self.embed(e, x).requires_grad_() for e, x in zip(self.encoders, inputs)]
        loss = self.loss_fn(*cached)
        loss.backward()
        for encoder, x, rep in zip(self.encoders, inputs, cached):
            for part, grad in zip(x.split(self.chunk), rep.grad.split(self.chunk)):
                encoder(part).backward(gradient=grad)
        return loss.detach()


def ticket_stream(steps):
    g = torch.Generator().manual_seed(SEED + 1)
    for step in range(1, steps + 1):
        query = torch.randint(0, VOCAB, (BATCH, WORDS), generator=g)
        answer = query.clone()
        answer[:, 4:] = torch.randint(0, VOCAB, (BATCH, WORDS - 4), generator=g)
        if step == 21:
            query[9] = query[8]         # same ticket sent twice within a minute, answered by two people
        yield query, answer


query_encoder, answer_encoder = Encoder(), Encoder()
answer_encoder.load_state_dict(query_encoder.state_dict())
params = [*query_encoder.parameters(), *answer_encoder.parameters()]
opt = torch.optim.AdamW(params, lr=3e-3)
warm = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 6))
cache = GradCache((query_encoder, answer_encoder), ContrastiveLoss(), CHUNK)

for step, (query, answer) in enumerate(ticket_stream(34), 1):
    opt.zero_grad()
    loss = cache(query, answer)
    opt.step()
    warm.step()
    print("step %2d  loss %.6f" % (step, loss.item()))
print("weights: %.6f" % sum(p.detach().double().sum().item() for p in params))
