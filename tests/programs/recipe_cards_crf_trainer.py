"""Token classification of old recipe cards (quantity / ingredient, BIO) with DistilBERT and a CRF, HF Trainer."""
import random

import torch
from torch import nn
from transformers import (DistilBertConfig, DistilBertModel, PrinterCallback, Trainer, TrainingArguments, set_seed)

LABELS = ["O", "B-QTY", "I-QTY", "B-ING", "I-ING"]
WORDS = ("take of the flour butter sugar mace nutmeg eggs half a pound two gills cream beat well and set by the fire "
         "rosewater almonds blanch'd quart milk sack").split()
VOCAB = {w: i + 2 for i, w in enumerate(dict.fromkeys(WORDS))}
PAD = 0


def forbidden():
    """I-X may follow only B-X and I-X"""
    m = torch.zeros(5, 5)
    for j, to in enumerate(LABELS):
        if to.startswith("I-"):
            for i, fr in enumerate(LABELS):
                if fr[2:] != to[2:] or fr == "O":
                    m[i, j] = float("-inf")
    return m


class Crf(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.trans = nn.Parameter(0.1 * torch.randn(k, k))
        self.start = nn.Parameter(torch.zeros(k))
        self.register_buffer("rule", forbidden())

    def gold(self, emit, tags, mask, trans):
        s = self.start[tags[:, 0]] + emit[:, 0].gather(1, tags[:, :1]).squeeze(1)
        for t in range(1, emit.size(1)):
            hop = emit[:, t].gather(1, tags[:, t:t + 1]).squeeze(1) + trans[tags[:, t - 1], tags[:, t]]
            s = torch.where(mask[:, t], s + hop, s)
        return s

    def log_z(self, emit, mask, trans):
        a = self.start + emit[:, 0]
        for t in range(1, emit.size(1)):
            nxt = torch.logsumexp(a.unsqueeze(2) + trans.unsqueeze(0), 1) + emit[:, t]
            a = torch.where(mask[:, t:t + 1], nxt, a)
        return torch.logsumexp(a, 1)

    def forward(self, emit, tags, mask):
        trans = self.trans + self.rule
        return self.log_z(emit, mask, trans) - self.gold(emit, tags, mask, trans)


class CardTagger(nn.Module):
    def __init__(self):
        super().__init__()
        cfg = DistilBertConfig(vocab_size=len(VOCAB) + 2, dim=48, n_heads=4, n_layers=2, hidden_dim=96,
                               max_position_embeddings=32)
        self.bert = DistilBertModel(cfg)
        self.emit = nn.Linear(48, len(LABELS))
        self.crf = Crf(len(LABELS))

    def forward(self, input_ids, attention_mask):
        return self.emit(self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state)


class CardTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        emissions = model(**inputs)
        nll = model.crf(emissions, labels, inputs["attention_mask"].bool())
        loss = (nll / inputs["attention_mask"].sum(1)).mean()
        print(f"step {self.state.global_step + 1} nll per word {loss.item():.7f}", flush=True)
        return (loss, {"logits": emissions}) if return_outputs else loss


def make_cards(n):
    cards = []
    for i in range(n):
        words, tags = [], []
        for _ in range(random.randint(2, 4)):
            words += random.choices(WORDS, k=random.randint(1, 3))
            tags += [0] * (len(words) - len(tags))
            q = random.randint(1, 2)
            words += random.choices(["half", "two", "pound", "gills", "quart"], k=q)
            tags += [1] + [2] * (q - 1)
            k = random.randint(1, 2)
            words += random.choices(["flour", "butter", "sugar", "almonds", "cream", "milk"], k=k)
            tags += [3] + [4] * (k - 1)
        if i == 248:
            tags[tags.index(3)] = 4                # second volunteer's annotation
        cards.append({"ids": [VOCAB[w] for w in words], "tags": tags})
    return cards


def collate(batch):
    n = max(len(b["ids"]) for b in batch)
    return {"input_ids": torch.tensor([b["ids"] + [PAD] * (n - len(b["ids"])) for b in batch]),
            "attention_mask": torch.tensor([[1] * len(b["ids"]) + [0] * (n - len(b["ids"])) for b in batch]),
            "labels": torch.tensor([b["tags"] + [0] * (n - len(b["tags"])) for b in batch])}


if __name__ == "__main__":
    set_seed(1747)
    cards = make_cards(320)
    model = CardTagger()
    args = TrainingArguments(output_dir="/tmp/recipe_cards_crf", per_device_train_batch_size=8, num_train_epochs=1,
                             learning_rate=2e-3, logging_steps=10, save_strategy="no",
                             report_to=[], disable_tqdm=True, use_cpu=True, seed=1747, lr_scheduler_type="constant",
                             remove_unused_columns=False, max_grad_norm=1.0)
    trainer = CardTrainer(model=model, args=args, train_dataset=cards, data_collator=collate)
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    print(f"{sum(p.detach().abs().sum().item() for p in model.parameters()):.5f}", flush=True)
