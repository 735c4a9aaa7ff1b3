"""Sentence embeddings: a tiny BERT reads both sentences of a pair, their cosine is to match the grade of an annotator."""
import torch
from torch.utils.data import DataLoader
from transformers import BertConfig, BertModel

SUBJECTS = "the cat|a nurse|our pilot|the mayor|a child|the baker".split("|")
VERBS = "sees|paints|sells|finds|wants|fears".split("|")
OBJECTS = "a boat|the moon|some bread|a red door|the old map".split("|")
EPOCHS, BATCH, WARMUP = 4, 8, 4


def make_pairs(n, gen):
    pick = lambda words: words[torch.randint(len(words), (1,), generator=gen).item()]
    pairs = []
    for _ in range(n):
        first = (pick(SUBJECTS), pick(VERBS), pick(OBJECTS))
        second = tuple(w if torch.rand(1, generator=gen) < 0.5 else pick(pool)
                       for w, pool in zip(first, (SUBJECTS, VERBS, OBJECTS)))
        grade = sum(a == b for a, b in zip(first, second)) / 3
        pairs.append((" ".join(first), " ".join(second), grade))
    return pairs


class Words:
    def __init__(self, pairs):
        words = sorted({w for a, b, _ in pairs for w in (a + " " + b).split()})
        self.index = {w: k + 2 for k, w in enumerate(words)}

    def __len__(self):
        return len(self.index) + 2

    def encode(self, sentences):
        rows = [[1] + [self.index[w] for w in s.split()] for s in sentences]
        longest = max(map(len, rows))
        ids = torch.tensor([r + [0] * (longest - len(r)) for r in rows])
        return {"input_ids": ids, "attention_mask": (ids != 0).long()}


class Embedder(torch.nn.Module):
    def __init__(self, vocabulary):
        super().__init__()
        self.bert = BertModel(BertConfig(vocab_size=vocabulary, hidden_size=32, num_hidden_layers=2,
                                         num_attention_heads=2, intermediate_size=48, max_position_embeddings=16))

    def forward(self, tokens):
        hidden = self.bert(**tokens).last_hidden_state
        mask = tokens["attention_mask"].unsqueeze(-1)
        return (hidden * mask).sum(1) / mask.sum(1)


def main():
    torch.manual_seed(33)
    pairs = make_pairs(52, torch.Generator().manual_seed(34))
    words = Words(pairs)
    model = Embedder(len(words)).train()
    loader = DataLoader(pairs, batch_size=BATCH, shuffle=True, generator=torch.Generator().manual_seed(35))
    total = EPOCHS * (len(pairs) // BATCH)

    def root_decay(k):
        if k < WARMUP:
            return (k + 1) / WARMUP
        return (1 - (k - WARMUP) / (total - WARMUP)) ** 0.5

    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, root_decay)
    step = 0
    for epoch in range(EPOCHS):
        for left, right, grade in loader:
            step += 1
            cosine = torch.cosine_similarity(model(words.encode(left)), model(words.encode(right)))
            loss = torch.nn.functional.mse_loss(cosine, grade.float())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            print(f"epoch {epoch} step {step} mse {loss.item():.5f}")
    print("sum of |weights|", round(sum(p.abs().sum().item() for p in model.parameters()), 4))


if __name__ == "__main__":
    main()
