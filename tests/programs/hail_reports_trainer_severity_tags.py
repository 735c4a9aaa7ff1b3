"""Tag words of hail reports with a severity (none, pea, marble, golf ball) with a small BERT.

Words of the observer's boilerplate are not labelled. Rare tags get more weight.
"""
import os
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import (BertConfig, BertForTokenClassification, PrinterCallback, Trainer, TrainerCallback,
                          TrainingArguments, set_seed)
from transformers.utils import logging as hf_logging

hf_logging.set_verbosity_error()

TAGS = ["none", "pea", "marble", "golf"]
BOILERPLATE = range(5, 15)
VOCAB = 120
MAX_LEN = 24
IGNORE = -100


class HailReports(Dataset):
    """Reports as lists of word ids; a tag hangs on the word and on the word before it."""

    def __init__(self, n, seed):
        rng = np.random.default_rng(seed)
        self.rows = []
        for i in range(n):
            length = int(rng.integers(8, MAX_LEN))
            words = rng.integers(15, VOCAB, size=length)
            header = int(rng.integers(1, 4))
            words[:header] = rng.integers(5, 15, size=header)
            if i == 147:                       # an observer who sent the form back with nothing filled in
                words = rng.integers(5, 15, size=length)
            self.rows.append((words, self.tag(words)))

    @staticmethod
    def tag(words):
        previous = np.concatenate([[0], words[:-1]])
        score = (words * 7 + previous) % 20
        tags = np.select([score < 12, score < 16, score < 19], [0, 1, 2], default=3)
        return np.where(np.isin(words, list(BOILERPLATE)), IGNORE, tags)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        words, tags = self.rows[i]
        return {"input_ids": words, "labels": tags}


def collate(features):
    size = max(len(f["input_ids"]) for f in features)
    batch = {
        "input_ids": torch.zeros(len(features), size, dtype=torch.long),
        "attention_mask": torch.zeros(len(features), size, dtype=torch.long),
        "labels": torch.full((len(features), size), IGNORE, dtype=torch.long),
    }
    for i, f in enumerate(features):
        n = len(f["input_ids"])
        batch["input_ids"][i, :n] = torch.as_tensor(f["input_ids"])
        batch["attention_mask"][i, :n] = 1
        batch["labels"][i, :n] = torch.as_tensor(f["labels"])
    return batch


def tag_weights(dataset):
    counts = np.zeros(len(TAGS))
    for _, tags in dataset.rows:
        for tag in tags[tags != IGNORE]:
            counts[tag] += 1
    return torch.tensor((counts.sum() / (len(TAGS) * counts)) ** 0.5, dtype=torch.float32)


class SeverityTrainer(Trainer):
    """Every report counts the same, however long it is."""

    def __init__(self, *args, weights=None, **kwargs):
        super().__init__(*args, **kwargs)
        self.weights = weights
        self.last = {}

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        safe = labels.clamp(min=0)
        share = (labels != IGNORE).float() * self.weights[safe]
        token = nn.functional.cross_entropy(outputs.logits.transpose(1, 2), safe, reduction="none")
        report = (token * share).sum(1) / share.sum(1)
        loss = report.nanmean()
        with torch.no_grad():
            hit = (outputs.logits.argmax(-1) == labels)[labels != IGNORE]
            self.last = {"loss": loss.item(), "accuracy": hit.float().mean().item()}
        return (loss, outputs) if return_outputs else loss


class Printer(TrainerCallback):
    trainer = None

    def on_step_end(self, args, state, control, **kwargs):
        last = self.trainer.last
        print(f"step {state.global_step} loss {last['loss']:.7f} accuracy {last['accuracy']:.4f}", flush=True)


def build_model():
    config = BertConfig(vocab_size=VOCAB, hidden_size=48, num_hidden_layers=2, num_attention_heads=4,
                        intermediate_size=96, max_position_embeddings=MAX_LEN, num_labels=len(TAGS),
                        hidden_dropout_prob=0.05, attention_probs_dropout_prob=0.0)
    return BertForTokenClassification(config)


def main():
    set_seed(31)
    reports = HailReports(400, seed=8)
    model = build_model()
    with tempfile.TemporaryDirectory() as out:
        args = TrainingArguments(output_dir=out, per_device_train_batch_size=10, max_steps=40, learning_rate=1e-3,
                                 lr_scheduler_type="constant", warmup_steps=0, logging_strategy="no",
                                 save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True, seed=31,
                                 remove_unused_columns=False, max_grad_norm=1.0)
        printer = Printer()
        trainer = SeverityTrainer(model=model, args=args, train_dataset=reports, data_collator=collate,
                                  callbacks=[printer], weights=tag_weights(reports))
        printer.trainer = trainer
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    print(sum(p.detach().abs().sum().item() for p in model.parameters()), flush=True)


if __name__ == "__main__":
    main()
