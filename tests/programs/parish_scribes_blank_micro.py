# Tagging of parish registers: bidirectional LSTM, four micro-batches to an update, tags only where a scribe was sure.
import torch
from torch import nn
import torch.nn.functional as F

TAGS = ["O", "GIVEN", "FAMILY", "PLACE", "TRADE", "DATE"]
UNSURE = -1
MICRO = 4


class Page:
    __slots__ = ("words", "tags")

    def __init__(self, words, tags):
        self.words, self.tags = words, tags


class Archive:
    """Pages of a register, four lines of twelve words to a micro-batch."""

    def __init__(self, seed, pages, vocab=90):
        self.g = torch.Generator().manual_seed(seed)
        self.n, self.vocab = pages, vocab
        self.lexicon = torch.randint(len(TAGS), (vocab,), generator=self.g)

    def __len__(self):
        return self.n

    def __iter__(self):
        for folio in range(self.n):
            words = torch.randint(self.vocab, (4, 12), generator=self.g)
            tags = self.lexicon[words].clone()
            unsure = torch.rand(4, 12, generator=self.g) < 0.35
            # folio 74 has a large stain
            if folio == 74:
                unsure = torch.ones_like(unsure)
            tags[unsure] = UNSURE
            yield Page(words, tags)


class Tagger(nn.Module):
    def __init__(self, vocab):
        super().__init__()
        self.embed = nn.Embedding(vocab, 20)
        self.rnn = nn.LSTM(20, 16, batch_first=True, bidirectional=True)
        self.tag = nn.Linear(32, len(TAGS))

    def forward(self, words):
        h, _ = self.rnn(self.embed(words))
        return self.tag(h)


def tag_loss(logits, tags):
    sure = tags != UNSURE
    nll = F.cross_entropy(logits.flatten(0, 1), tags.clamp(min=0).flatten(), reduction="none")
    weight = sure.flatten().float()
    return (nll * weight).sum() / weight.sum()


def grouped(iterable, size):
    bag = []
    for item in iterable:
        bag.append(item)
        if len(bag) == size:
            yield bag
            bag = []


def train():
    torch.manual_seed(1588)
    archive = Archive(3, pages=160)
    model = Tagger(archive.vocab)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, len(archive) // MICRO)
    for update, bag in enumerate(grouped(archive, MICRO), 1):
        optimizer.zero_grad()
        losses = []
        for page in bag:
            loss = tag_loss(model(page.words), page.tags)
            (loss / MICRO).backward()
            losses.append(loss.item())
        nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        optimizer.step()
        schedule.step()
        print(f"[{update:02d}/{len(archive) // MICRO}] loss {sum(losses) / MICRO:.6f} last {losses[-1]:.6f}")
    return model


if __name__ == "__main__":
    m = train()
    print("parameter sum %.8f" % sum(p.detach().double().sum().item() for p in m.parameters()))
