# Part-of-speech tagger for Votic field notes: suffix embeddings, one GRU, linear-chain CRF.
import random
import torch
from torch import nn

TAGS = ["NOUN", "VERB", "ADJ", "PRON", "ADP", "PUNCT"]
ENDINGS = {"NOUN": ["a", "ad", "assa", "ollõ"], "VERB": ["b", "vad", "taa", "in"], "ADJ": ["ea", "ed"],
           "PRON": ["miä", "siä", "tämä"], "ADP": ["päällä", "alla"], "PUNCT": ["."]}
FOLLOW = {"NOUN": ["VERB", "ADP", "PUNCT"], "VERB": ["ADJ", "NOUN", "PUNCT"], "ADJ": ["NOUN"],
          "PRON": ["VERB"], "ADP": ["VERB", "PUNCT"], "PUNCT": ["PRON", "NOUN", "ADJ"]}
VOCAB = sorted({e for v in ENDINGS.values() for e in v})
WORD = {w: i for i, w in enumerate(VOCAB)}

rng = random.Random(77)
torch.manual_seed(77)


def utterance(length):
    tag, rows = rng.choice(["PRON", "NOUN", "ADJ"]), []
    for _ in range(length):
        rows.append((WORD[rng.choice(ENDINGS[tag])], TAGS.index(tag)))
        tag = rng.choice(FOLLOW[tag])
    words, tags = zip(*rows)
    return torch.tensor(words), torch.tensor(tags)


class LogPartition(torch.autograd.Function):
    """Forward algorithm, with the marginals as its derivative (no graph over the recursion)."""

    @staticmethod
    def forward(ctx, emit, trans):
        n, k = emit.shape
        alpha, beta = emit.new_zeros(n, k), emit.new_zeros(n, k)
        alpha[0] = emit[0]
        for t in range(1, n):
            alpha[t] = torch.logsumexp(alpha[t - 1].unsqueeze(1) + trans, dim=0) + emit[t]
        for t in range(n - 2, -1, -1):
            beta[t] = torch.logsumexp(trans + emit[t + 1] + beta[t + 1], dim=1)
        z = torch.logsumexp(alpha[-1], dim=0)
        ctx.save_for_backward(alpha, beta, emit, trans, z)
        return z

    @staticmethod
    def backward(ctx, g):
        alpha, beta, emit, trans, z = ctx.saved_tensors
        unary = (alpha + beta).exp() / z.exp()
        joint = alpha[:-1].unsqueeze(2) + trans + (emit[1:] + beta[1:]).unsqueeze(1)
        pairwise = joint.exp() / z.exp()
        return g * unary, g * pairwise.sum(0)


class ChainCRF(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.trans = nn.Parameter(torch.zeros(k, k))

    def forward(self, emit, tags):
        path = emit.gather(1, tags[:, None]).sum() + self.trans[tags[:-1], tags[1:]].sum()
        return LogPartition.apply(emit, self.trans) - path


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(len(VOCAB), 12)
        self.rnn = nn.GRU(12, 16, batch_first=True)
        self.out = nn.Linear(16, len(TAGS))
        self.crf = ChainCRF(len(TAGS))

    def forward(self, words, tags):
        h, _ = self.rnn(self.emb(words).unsqueeze(0))
        return self.crf(self.out(h.squeeze(0)), tags)


# three utterances per page of the notebook; here and there somebody tells a tale
pages = [[utterance(rng.randint(5, 12)) for _ in range(3)] for _ in range(34)]
pages[18][1] = utterance(74)

tagger = Tagger()
sgd = torch.optim.SGD(tagger.parameters(), lr=0.05, momentum=0.8)
for number, page in enumerate(pages, start=1):
    nll = sum(tagger(w, t) for w, t in page)
    per_word = nll / sum(len(w) for w, _ in page)
    sgd.zero_grad()
    per_word.backward()
    sgd.step()
    print("page %2d  nll/word %.5f" % (number, per_word.item()))

print("squared weights: %.6f" % sum((p ** 2).sum().item() for p in tagger.parameters()))
