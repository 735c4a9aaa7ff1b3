"""LambdaRank for the search box of a campsite guide: one encoder for queries and for descriptions (Siamese)."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

WORDS, LENGTH, DOCS = 400, 8, 7
QUERIES_PER_STEP, STEPS = 6, 40


class Judgements(Dataset):
    """Query, seven campsites, and the grade (0..3) that a rater gave to each."""

    def __init__(self, size):
        g = torch.Generator().manual_seed(70)
        self.query = torch.randint(1, WORDS, (size, LENGTH), generator=g)
        self.docs = torch.randint(1, WORDS, (size, DOCS, LENGTH), generator=g)
        self.grade = torch.randint(0, 4, (size, DOCS), generator=g)
        for i in range(size):
            self.grade[i, int(torch.randint(DOCS, (1,), generator=g))] = 3
            for j in range(DOCS):
                k = 2 * int(self.grade[i, j])
                self.docs[i, j, :k] = self.query[i, :k]
        # "naturist camping near airport": nothing that was shown was of any use
        i = 22 * QUERIES_PER_STEP + 3
        self.grade[i] = 0

    def __len__(self):
        return len(self.query)

    def __getitem__(self, i):
        return self.query[i], self.docs[i], self.grade[i]


class LambdaPairs(torch.autograd.Function):
    """Pairwise logistic loss going forward, lambdas weighted with the change in NDCG going back."""

    @staticmethod
    def forward(ctx, scores, grade):
        ctx.save_for_backward(scores, grade)
        gap = scores[:, :, None] - scores[:, None, :]
        better = (grade[:, :, None] > grade[:, None, :]).float()
        return (better * F.softplus(-gap)).sum((1, 2)).mean()

    @staticmethod
    def backward(ctx, upstream):
        scores, grade = ctx.saved_tensors
        gain = 2.0 ** grade.float() - 1.0
        rank = scores.argsort(1, descending=True).argsort(1).float()
        discount = 1.0 / torch.log2(rank + 2.0)
        places = 1.0 / torch.log2(torch.arange(DOCS).float() + 2.0)
        ideal = (gain.sort(1, descending=True).values * places).sum(1)
        swap = (gain[:, :, None] - gain[:, None, :]) * (discount[:, :, None] - discount[:, None, :])
        delta = swap.abs() / ideal[:, None, None]
        better = (grade[:, :, None] > grade[:, None, :]).float()
        gap = scores[:, :, None] - scores[:, None, :]
        lam = better * torch.sigmoid(-gap) * delta
        slope = lam.sum(1) - lam.sum(2)
        return upstream * slope / len(scores), None


class Encoder(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.words = nn.EmbeddingBag(WORDS, dim, mode="mean")
        self.mix = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, dim))

    def forward(self, tokens):
        bag = self.words(tokens.reshape(-1, LENGTH))
        return (bag + self.mix(bag)).view(*tokens.shape[:-1], -1)


class Ranker(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder()
        self.sharpness = nn.Parameter(torch.tensor(0.5))

    def forward(self, query, docs):
        return self.sharpness * torch.einsum("bd,bkd->bk", self.encoder(query), self.encoder(docs))


def main():
    torch.manual_seed(4)
    loader = DataLoader(Judgements(STEPS * QUERIES_PER_STEP), batch_size=QUERIES_PER_STEP, num_workers=1)
    model = Ranker()
    slow = torch.optim.SGD([model.sharpness], lr=0.01)
    fast = torch.optim.Adam(model.encoder.parameters(), lr=5e-3)
    for step, (query, docs, grade) in enumerate(loader, start=1):
        scores = model(query, docs)
        loss = LambdaPairs.apply(scores, grade)
        fast.zero_grad()
        slow.zero_grad()
        loss.backward()
        fast.step()
        slow.step()
        print("step", step, "pair loss", "%.6f" % loss.item(), flush=True)
    total = sum(p.detach().abs().sum() for p in model.parameters())
    print("%.6f" % total.item())


if __name__ == "__main__":
    main()
