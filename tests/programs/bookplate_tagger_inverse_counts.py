import math
import random

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForTokenClassification

TAGS = ["O", "OWNER", "PLACE", "YEAR", "MOTTO", "ENGRAVER"]
N_STEPS, BATCH, VOCAB = 40, 6, 120
random.seed(3)
torch.manual_seed(3)


def bookplate():
    """An ex-libris as token ids and tags. A motto or an engraver is on few of them."""
    ids, tags = [2], [0]
    for tag, chance in ((0, 1.0), (1, 0.9), (0, 0.5), (2, 0.4), (3, 0.3), (4, 0.06), (5, 0.05)):
        if random.random() < chance:
            for _ in range(random.randint(1, 3)):
                ids.append(10 + 15 * tag + random.randrange(15))
                tags.append(tag)
    return ids, tags


def collate(rows):
    width = max(len(r[0]) for r in rows)
    ids = torch.tensor([r[0] + [0] * (width - len(r[0])) for r in rows])
    tags = torch.tensor([[-100] + r[1][1:] + [-100] * (width - len(r[1])) for r in rows])
    return ids, (ids != 0).long(), tags


def batch_weights(tags):
    """n / count of this batch; a tag that is not in the batch has an infinite weight, which no token picks up."""
    counts = torch.bincount(tags[tags >= 0], minlength=len(TAGS)).float()
    return counts.sum() / (len(TAGS) * counts)


def f1_per_tag(pred, tags):
    scores = []
    for t in range(len(TAGS)):
        hit = ((pred == t) & (tags == t)).sum().float()
        scores.append((2 * hit / ((pred == t) & (tags >= 0)).sum().add((tags == t).sum())).item())
    return scores


config = BertConfig(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
                    max_position_embeddings=32, num_labels=len(TAGS), hidden_dropout_prob=0.0)
model = BertForTokenClassification(config)
for p in model.bert.embeddings.position_embeddings.parameters():
    p.requires_grad_(False)
groups = [
    {"params": [p for n, p in model.named_parameters() if p.requires_grad and "classifier" not in n], "lr": 1e-3},
    {"params": model.classifier.parameters(), "lr": 4e-3},
]
optimizer = torch.optim.AdamW(groups, weight_decay=0.01)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: 0.5 * (1 + math.cos(math.pi * s / N_STEPS)))
loader = DataLoader([bookplate() for _ in range(N_STEPS * BATCH)], batch_size=BATCH, shuffle=True, collate_fn=collate)

model.train()
for step, (ids, mask, tags) in enumerate(loader, 1):
    weights = batch_weights(tags)
    logits = model(input_ids=ids, attention_mask=mask).logits
    loss = F.cross_entropy(logits.reshape(-1, len(TAGS)), tags.reshape(-1), weight=weights, ignore_index=-100)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    f1 = f1_per_tag(logits.argmax(-1), tags)
    print(f"{step:3d} loss={loss.item():.8f} rarest={weights.max().item():.3f} f1=" + " ".join(f"{x:.3f}" for x in f1),
          flush=True)
print(sum(p.detach().abs().sum().item() for p in model.parameters()))
