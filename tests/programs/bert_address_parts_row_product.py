"""Tags the parts of postal addresses (number, street, unit, city, postcode, other) with a small BERT."""
import random

import torch
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForTokenClassification

TAGS = ["O", "NUM", "STREET", "UNIT", "CITY", "CODE"]
VOCAB = 220


def one_address(r):
    words = [(r.randint(10, 59), 1)]
    words += [(r.randint(60, 119), 2) for _ in range(r.randint(1, 3))]
    if r.random() < 0.4:
        words.append((r.randint(120, 139), 3))
    words += [(r.randint(140, 189), 4) for _ in range(r.randint(1, 2))]
    words.append((r.randint(190, 209), 5))
    if r.random() < 0.3:
        words.append((r.randint(210, 219), 0))
    return words


def corpus(n):
    r = random.Random(3)
    rows = [one_address(r) for _ in range(n)]
    rows[101] = sum((one_address(r) for _ in range(26)), [])      # a whole delivery round on one line
    return [{"input_ids": [w for w, _ in row], "labels": [t for _, t in row]} for row in rows]


def pad_rows(rows):
    width = max(len(r["input_ids"]) for r in rows)
    fill = lambda seq, v: seq + [v] * (width - len(seq))
    return {
        "input_ids": torch.tensor([fill(r["input_ids"], 0) for r in rows]),
        "attention_mask": torch.tensor([fill([1] * len(r["input_ids"]), 0) for r in rows]),
        "labels": torch.tensor([fill(r["labels"], -100) for r in rows]),
    }


class AddressTrainer:
    def __init__(self, model, data, batch_size=8, lr=3e-3, warmup=4, total=30, seed=17):
        self.model = model
        order = torch.Generator().manual_seed(seed)
        self.loader = DataLoader(data, batch_size, shuffle=True, collate_fn=pad_rows, generator=order)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
        ramp = lambda s: s / warmup if s < warmup else (total - s) / (total - warmup)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, ramp)

    def compute_loss(self, inputs):
        """Cross entropy, plus a reward for rows that are right from end to end."""
        labels = inputs["labels"]
        out = self.model(**inputs)
        used = labels != -100
        p = out.logits.softmax(-1).gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
        p = p.masked_fill(~used, 1.0)
        row_score = p.prod(dim=1).pow(1.0 / used.sum(1))
        return out.loss + 0.5 * (1.0 - row_score).mean()

    def train(self):
        self.model.train()
        for step, inputs in enumerate(self.loader, start=1):
            loss = self.compute_loss(inputs)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.scheduler.step()
            self.optimizer.zero_grad()
            print({"step": step, "loss": round(loss.item(), 5)})


def main():
    torch.manual_seed(17)
    config = BertConfig(
        vocab_size=VOCAB, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=48,
        max_position_embeddings=256, num_labels=len(TAGS), hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )
    model = BertForTokenClassification(config)
    AddressTrainer(model, corpus(240)).train()
    print("weights, sum of absolute values:", sum(p.abs().sum().item() for p in model.parameters()))


if __name__ == "__main__":
    main()
