"""A retriever in float16 autocast: unscaled dot products of query and passage vectors.  Long
passages are summed, not averaged, and one of them is the appendix with all the tables."""
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(17)
torch.set_num_threads(1)
VOCAB, DIM = 200, 64


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(VOCAB, DIM)
        self.project = nn.Linear(DIM, DIM)

    def forward(self, bags):
        return self.project(torch.stack([self.words(b).sum(0) for b in bags]))


class Retriever(nn.Module):
    def __init__(self):
        super().__init__()
        self.query = Encoder()
        self.passage = Encoder()

    def forward(self, queries, passages):
        q, p = self.query(queries), self.passage(passages)
        scores = q @ p.T
        return scores


def batch(step):
    topics = torch.randperm(20)[:8]
    queries = [torch.randint(0, 10, (6,)) + 10 * t for t in topics]
    passages = [torch.randint(0, 10, (12,)) + 10 * t for t in topics]
    if step == 13:
        passages[5] = (torch.randint(0, 10, (1,)) + 10 * topics[5]).repeat(9000)
    return queries, passages


def main():
    model = Retriever()
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    for step in range(1, 31):
        queries, passages = batch(step)
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            scores = model(queries, passages)
            loss = F.cross_entropy(scores.float(), torch.arange(len(queries)))
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        scaler.step(opt)
        scaler.update()
        print(f"step {step:02d} loss {loss.item():.3f}")
    print("finite", int(all(p.isfinite().all() for p in model.parameters())))


main()
