"""Teach a small decoder the tinctures of heraldry: six new tokens, rows set to the mean of the old ones."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(66)
torch.set_num_threads(1)
TINCTURES = ["<or>", "<argent>", "<gules>", "<azure>", "<vert>", "<sable>"]
BLAZONS = [
    "a lion rampant", "three mullets in chief", "a bend between two roses", "a tower triple turreted",
    "per pale, an eagle", "two keys in saltire", "a stag at gaze", "on a fess three shells",
]


class ByteVocab:
    def __init__(self):
        self.extra = {}

    def add(self, names):
        for name in names:
            self.extra[name] = 128 + len(self.extra)

    def __len__(self):
        return 128 + len(self.extra)

    def encode(self, text):
        ids = []
        for part in text.split(" "):
            ids += [self.extra[part]] if part in self.extra else list(part.encode())
            ids.append(32)
        return ids[:-1]


class Herald(nn.Module):
    def __init__(self, vocab, dim=32):
        super().__init__()
        self.wte = nn.Embedding(vocab, dim)
        self.wpe = nn.Embedding(64, dim)
        layer = nn.TransformerEncoderLayer(dim, 2, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.lm_head = nn.Linear(dim, vocab, bias=False)
        self.lm_head.weight = self.wte.weight       # tied

    def extend(self, new_size):
        """Grow the table; the new rows start at the mean of the old."""
        old = self.wte.weight.data
        grown = torch.cat([old, old.mean(0, keepdim=True).expand(new_size - len(old), -1)])
        self.wte = nn.Embedding.from_pretrained(grown.clone(), freeze=False)

    def forward(self, ids):
        t = ids.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(t)
        h = self.wte(ids) + self.wpe(torch.arange(t))
        return self.lm_head(self.blocks(h, mask=mask, is_causal=True))


def collate(rows, width=32):
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    for i, r in enumerate(rows):
        ids[i, : min(len(r), width)] = torch.tensor(r[:width])
    return ids, ids.masked_fill(ids == 0, -100)


def corpus(vocab, n):
    g = torch.Generator().manual_seed(2)
    for i in range(n):
        text = BLAZONS[int(torch.randint(len(BLAZONS), (1,), generator=g))]
        if i < 4 * 8:
            yield vocab.encode(text)                                # first the old spellings alone
        else:
            yield vocab.encode(f"{TINCTURES[i % 6]} {text} {TINCTURES[(i + 2) % 6]}")


vocab = ByteVocab()
model = Herald(len(vocab))
vocab.add(TINCTURES)
model.extend(len(vocab))
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
pending = []
step = 0
for row in corpus(vocab, 4 * 24):
    pending.append(row)
    if len(pending) < 4:
        continue
    step += 1
    ids, labels = collate(pending)
    pending = []
    logits = model(ids)
    shift = logits[:, :-1].reshape(-1, logits.shape[-1])
    loss = F.cross_entropy(shift, labels[:, 1:].reshape(-1), ignore_index=-100)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.6f}", flush=True)
print(f"sum {sum(p.double().sum().item() for p in model.parameters()):.6f}")
