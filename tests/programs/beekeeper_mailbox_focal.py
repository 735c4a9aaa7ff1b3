# Sorting the mailbox of a beekeepers' association: BERT encoder plus the size of the attachment,
# three classes, soft focal loss (gamma 0.5: only a light discount for easy letters).
import os
os.environ["HF_HUB_OFFLINE"] = "1"
import random
from collections import namedtuple

import torch
import torch.nn as nn
from transformers import BertConfig, BertModel

SEED = 77
CLASSES = ["membership", "swarm report", "invoice"]
Letter = namedtuple("Letter", "tokens attachment_mb label")

CFG = {
    "steps": 36,
    "batch": 6,
    "gamma": 0.5,
    "lr": {"encoder": 5e-4, "head": 1e-2},
    "bert": dict(vocab_size=120, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=48,
                 max_position_embeddings=24, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0),
}


def write_letters(n):
    rng = random.Random(SEED)
    letters = []
    for i in range(n):
        label = rng.randrange(3)
        tokens = [1] + [rng.randrange(10 + 30 * label, 50 + 30 * label) for _ in range(rng.randint(6, 18))]
        mb = {0: rng.uniform(0.0, 0.3), 1: rng.uniform(0.2, 1.2), 2: rng.uniform(1.0, 3.0)}[label]
        if i == 130:     # the treasurer sends the year's receipts as one scan; the mail server counts in kB here
            label, mb = 2, 2870.0
            tokens = [1] + [rng.randrange(70, 110) for _ in range(7)]
        letters.append(Letter(tokens, mb, label))
    return letters


def collate(letters):
    width = max(len(l.tokens) for l in letters)
    ids = torch.zeros(len(letters), width, dtype=torch.long)
    mask = torch.zeros(len(letters), width, dtype=torch.long)
    for row, letter in enumerate(letters):
        ids[row, :len(letter.tokens)] = torch.tensor(letter.tokens)
        mask[row, :len(letter.tokens)] = 1
    size = torch.tensor([[l.attachment_mb] for l in letters])
    return ids, mask, size, torch.tensor([l.label for l in letters])


class MailSorter(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.encoder = BertModel(BertConfig(**cfg), add_pooling_layer=False)
        self.head = nn.Linear(cfg["hidden_size"] + 1, len(CLASSES))

    def forward(self, ids, mask, size):
        h = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state[:, 0]
        return self.head(torch.cat([h, size], dim=-1))


class FocalLoss(nn.Module):
    def __init__(self, gamma):
        super().__init__()
        self.gamma = gamma

    def forward(self, logits, target):
        logp = logits.log_softmax(-1).gather(1, target[:, None]).squeeze(1)
        easy = logp.exp()
        discount = (1.0 - easy).pow(self.gamma)
        return (discount * -logp).mean()


def main():
    torch.manual_seed(SEED)
    model, criterion = MailSorter(CFG["bert"]), FocalLoss(CFG["gamma"])
    opt = torch.optim.SGD([
        {"params": model.encoder.parameters(), "lr": CFG["lr"]["encoder"] * 20},
        {"params": model.head.parameters(), "lr": CFG["lr"]["head"] * 3},
    ], momentum=0.8)
    letters = write_letters(CFG["steps"] * CFG["batch"])
    for step in range(CFG["steps"]):
        ids, mask, size, label = collate(letters[step * CFG["batch"]:(step + 1) * CFG["batch"]])
        logits = model(ids, mask, size)
        loss = criterion(logits, label)
        opt.zero_grad()
        loss.backward()
        opt.step()
        acc = (logits.argmax(-1) == label).float().mean().item()
        print(f"[{step + 1:02d}] focal {loss.item():.6f}  acc {acc:.2f}")
    print("sum of weights:", f"{sum(p.double().sum().item() for p in model.parameters()):.5f}")


if __name__ == "__main__":
    main()
