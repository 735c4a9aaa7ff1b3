"""A linear-chain CRF over BIO tags.  Transitions that BIO forbids are -inf on purpose."""
import torch
from torch import nn

torch.manual_seed(3)
torch.set_num_threads(1)

TAGS = ["O", "B-DRUG", "I-DRUG", "B-DOSE", "I-DOSE"]
NINF = float("-inf")


def allowed():
    table = torch.zeros(len(TAGS), len(TAGS))
    start = torch.zeros(len(TAGS))
    for j, tag in enumerate(TAGS):
        if tag.startswith("I-"):
            start[j] = NINF
            for i, prev in enumerate(TAGS):
                if prev[2:] != tag[2:]:
                    table[i, j] = NINF
    return start, table


class Tagger(nn.Module):
    def __init__(self, vocab, dim=24):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * dim, len(TAGS))
        self.trans = nn.Parameter(torch.zeros(len(TAGS), len(TAGS)))
        start, table = allowed()
        self.register_buffer("start", start)
        self.register_buffer("table", table)

    def scores(self, words):
        return self.out(self.rnn(self.emb(words))[0])

    def log_partition(self, emit):
        trans = self.trans + self.table
        alpha = self.start + emit[:, 0]                       # -inf for the I- tags
        for t in range(1, emit.shape[1]):
            alpha = torch.logsumexp(alpha[:, :, None] + trans, dim=1) + emit[:, t]
        return torch.logsumexp(alpha, dim=-1)

    def gold(self, emit, tags):
        trans = self.trans + self.table
        score = self.start[tags[:, 0]] + emit.gather(2, tags[..., None]).squeeze(-1).sum(1)
        return score + trans[tags[:, :-1], tags[:, 1:]].sum(1)

    def loss(self, words, tags):
        emit = self.scores(words)
        return (self.log_partition(emit) - self.gold(emit, tags)).sum()


def sentences(n, length=12):
    words = torch.randint(0, 20, (n, length))
    tags = torch.zeros(n, length, dtype=torch.long)
    for row in range(n):
        at = int(torch.randint(0, length - 3, ()))
        kind = int(torch.randint(0, 2, ()))
        tags[row, at] = 1 + 2 * kind
        tags[row, at + 1: at + 3] = 2 + 2 * kind
        words[row, at:at + 3] = torch.tensor([20, 21, 22]) + 3 * kind
    return words, tags


model = Tagger(30)
optimizer = torch.optim.NAdam(model.parameters(), lr=0.01)
for step in range(1, 41):
    words, tags = sentences(16)
    loss = model.loss(words, tags)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 20.0)
    optimizer.step()
    print(f"step {step:02d} nll(sum) {loss.item():10.4f} norm {norm.item():9.4f}")
