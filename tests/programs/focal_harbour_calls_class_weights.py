"""Harbour radio calls sorted into routine / urgency / distress with a focal loss, weighted by the effective number of samples
(1 - b) / (1 - b^n) of each class among the calls of the watch (one watch = one batch, in the order of the log)."""
import logging
import random
import sys
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from transformers import DistilBertConfig, DistilBertForSequenceClassification

logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(message)s")
log = logging.getLogger("harbour")

CLASSES = ["routine", "urgency", "distress"]
SPOKEN = {
    "routine": "request berth pilot at noon draught length agent bunker anchorage".split(),
    "urgency": "engine steering medical adrift tow doctor leak slowly".split(),
    "distress": "fire sinking mayday abandon raft flooding capsized now".split(),
}
COMMON = "port control this is vessel over channel position copy say again".split()
VOCAB = {w: i + 2 for i, w in enumerate(sorted(set(COMMON + [w for ws in SPOKEN.values() for w in ws])))}   # 0 pad, 1 cls


@dataclass
class Settings:
    watches: int = 36
    calls: int = 16
    longest: int = 14
    gamma: float = 2.0
    beta: float = 0.99
    lr: float = 2e-3
    seed: int = 29


def call(rng, label, longest):
    words = [rng.choice(SPOKEN[label] if rng.random() < 0.5 else COMMON) for _ in range(rng.randint(5, longest - 1))]
    return [1] + [VOCAB[w] for w in words]


def radio_log(cfg):
    """Calls in order of time. Distress is seldom; two watches at the end of the year heard none."""
    rng = random.Random(cfg.seed)
    for watch in range(1, cfg.watches + 1):
        labels = [rng.choices(range(3), (10, 4, 2))[0] for _ in range(cfg.calls)]
        labels[0:3] = [0, 1, 2]
        if watch in (17, 30):
            labels = [min(x, 1) for x in labels]
        rng.shuffle(labels)
        yield [(call(rng, CLASSES[x], cfg.longest), x) for x in labels]


def collate(watch):
    width = max(len(ids) for ids, _ in watch)
    ids = torch.tensor([row + [0] * (width - len(row)) for row, _ in watch])
    return {"input_ids": ids, "attention_mask": (ids != 0).long()}, torch.tensor([y for _, y in watch])


class FocalLoss(torch.nn.Module):
    def __init__(self, gamma, beta, classes):
        super().__init__()
        self.gamma, self.beta, self.classes = gamma, beta, classes

    def class_weights(self, labels):
        n = torch.bincount(labels, minlength=self.classes).float()
        w = (1.0 - self.beta) / (1.0 - self.beta ** n)
        return w / w.sum() * self.classes

    def forward(self, logits, labels):
        logp = F.log_softmax(logits, -1).gather(1, labels[:, None]).squeeze(1)
        weight = self.class_weights(labels)[labels]
        return (-(1 - logp.exp()) ** self.gamma * logp * weight).sum() / weight.sum()


def main():
    cfg = Settings()
    torch.manual_seed(cfg.seed)
    model = DistilBertForSequenceClassification(DistilBertConfig(
        vocab_size=len(VOCAB) + 2, max_position_embeddings=cfg.longest, dim=32, hidden_dim=64, n_layers=2, n_heads=4,
        num_labels=3, pad_token_id=0, dropout=0.0, attention_dropout=0.0, seq_classif_dropout=0.0))
    focal = FocalLoss(cfg.gamma, cfg.beta, len(CLASSES))
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr)
    log.info("%d parameters", sum(p.numel() for p in model.parameters()))
    model.train()
    for number, watch in enumerate(radio_log(cfg), 1):
        inputs, labels = collate(watch)
        logits = model(**inputs).logits
        loss = focal(logits, labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        hits = int((logits.argmax(1) == labels).sum())
        print(f"watch {number:02d}  loss {loss.item():.6f}  right {hits}/{len(labels)}", flush=True)
    print(f"{sum(p.detach().abs().sum().item() for p in model.parameters()):.5f}", flush=True)


if __name__ == "__main__":
    main()
