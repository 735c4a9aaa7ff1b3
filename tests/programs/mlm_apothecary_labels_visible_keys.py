import random
import torch
from torch import nn

SUBSTANCE = "aloe camphor cinchona ether ipecac laudanum mercury myrrh opium quinine senna valerian".split()
FORM = "pulv tinct syrup ungt extr aqua pil".split()
USE = "bis ter die nocte pro infante externe cave venenum".split()
VOCAB = ["[PAD]", "[MASK]"] + SUBSTANCE + FORM + USE
INDEX = {w: i for i, w in enumerate(VOCAB)}

def label_texts(n, rng):
    rows = []
    for _ in range(n):
        s = rng.randrange(len(SUBSTANCE))
        use = [USE[(s + rng.randrange(3)) % len(USE)] for _ in range(rng.choice([1, 4, 5, 6, 6, 7]))]
        words = [FORM[s % len(FORM)], SUBSTANCE[s]] + use
        rows.append({"ids": [INDEX[w] for w in words]})
    return rows

class MaskingCollator:
    """Hides a share of the words of each label; hidden words are no keys for the others."""

    def __init__(self, share, seed):
        self.share, self.rng = share, random.Random(seed)

    def __call__(self, rows):
        width = max(len(r["ids"]) for r in rows)
        ids = torch.zeros(len(rows), width, dtype=torch.long)
        labels = torch.full((len(rows), width), -100)
        visible = torch.zeros(len(rows), width, dtype=torch.bool)
        for k, row in enumerate(rows):
            for j, token in enumerate(row["ids"]):
                hide = self.rng.random() < self.share
                ids[k, j], visible[k, j] = (1 if hide else token), not hide
                labels[k, j] = token if hide else -100
        return {"ids": ids, "visible": visible, "labels": labels}

class Layer(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.ffn = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))

    def forward(self, x, visible):
        B, T, D = x.shape
        q, k, v = (y.view(B, T, self.heads, -1).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        score = q @ k.transpose(-1, -2) / (D // self.heads) ** 0.5
        score = score.masked_fill(~visible[:, None, None, :], float("-inf"))
        mix = torch.softmax(score, -1) @ v
        x = self.n1(x + self.proj(mix.transpose(1, 2).reshape(B, T, D)))
        return self.n2(x + self.ffn(x))

class LabelBert(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.words, self.places = nn.Embedding(len(VOCAB), d, padding_idx=0), nn.Embedding(16, d)
        self.layers = nn.ModuleList(Layer(d, 4) for _ in range(2))
        self.head = nn.Linear(d, len(VOCAB))

    def forward(self, ids, visible, labels=None):
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        for layer in self.layers:
            x = layer(x, visible)
        logits = self.head(x)
        return {"loss": nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}

class Trainer:
    batch_size, max_steps, learning_rate = 8, 38, 3e-3

    def __init__(self, model, collator, train_set, eval_set, compute_metrics):
        self.model, self.collator, self.compute_metrics = model, collator, compute_metrics
        self.train_set, self.eval_set = train_set, eval_set
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=self.learning_rate)
        self.scheduler = torch.optim.lr_scheduler.LinearLR(self.optimizer, 1.0, 0.2, self.max_steps)

    def batches(self):
        while True:
            order = torch.randperm(len(self.train_set)).tolist()
            while len(order) >= self.batch_size:
                yield self.collator([self.train_set[order.pop()] for _ in range(self.batch_size)])

    def train(self):
        for step, batch in zip(range(1, self.max_steps + 1), self.batches()):
            loss = self.model(**batch)["loss"]
            loss.backward()
            norm = nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.scheduler.step()
            self.optimizer.zero_grad()
            print(f"step {step} mlm {loss.item():.4f} norm {norm.item():.3f}")

    @torch.no_grad()
    def evaluate(self):
        batch = self.collator(self.eval_set)
        return self.compute_metrics(self.model(**batch)["logits"].numpy(), batch["labels"].numpy())

def hit_rate(predictions, labels):
    return {"hits": float((predictions.argmax(-1) == labels)[labels != -100].mean())}

torch.manual_seed(11)
rng = random.Random(3)
model = LabelBert()
trainer = Trainer(model, MaskingCollator(0.3, 8), label_texts(260, rng), label_texts(16, rng), hit_rate)
trainer.train()
print("hits of hidden words", round(trainer.evaluate()["hits"], 3))
print("sum of absolute weights", sum(p.abs().sum().item() for p in model.parameters()))
