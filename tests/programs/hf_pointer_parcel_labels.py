# Where on a parcel label does the postcode start?  Pointer head on a tiny DistilBERT, HF Trainer.
# The word table is frozen, the last accumulation window of an epoch is short, and one metric has no value.
import os
import tempfile

os.environ.setdefault("DS_ACCELERATOR", "cpu")      # DeepSpeed is installed here and talks otherwise

import numpy as np
import torch
import torch.nn.functional as F
from transformers import (DistilBertConfig, DistilBertModel, PrinterCallback, ProgressCallback, Trainer,
                          TrainingArguments, set_seed)

set_seed(3)
PAD, MARK, VOCAB = 0, 1, 60
rng = np.random.default_rng(3)


def label():
    n = int(rng.integers(5, 15))
    ids = rng.integers(2, VOCAB, n)
    at = int(rng.integers(0, n))
    ids[at] = MARK
    return {"input_ids": ids.tolist(), "start": at}


def collate(rows):
    width = 16
    ids = torch.tensor([r["input_ids"] + [PAD] * (width - len(r["input_ids"])) for r in rows])
    return {"input_ids": ids, "attention_mask": (ids != PAD).long(),
            "labels": torch.tensor([r["start"] for r in rows])}


class Pointer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = DistilBertModel(DistilBertConfig(vocab_size=VOCAB, dim=16, hidden_dim=32, n_layers=1, n_heads=2,
                                                     max_position_embeddings=16, dropout=0.0, attention_dropout=0.0))
        self.body.embeddings.word_embeddings.weight.requires_grad_(False)
        self.query = torch.nn.Linear(16, 1)

    def forward(self, input_ids, attention_mask, labels=None):
        h = self.body(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        logits = self.query(h).squeeze(-1).masked_fill(attention_mask == 0, -torch.inf)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


class Spoken(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        out = model(**inputs)
        if model.training:
            print("loss", repr(out["loss"].item()), flush=True)
        return (out["loss"], out) if return_outputs else out["loss"]


def metrics(pred):
    guess = pred.predictions.argmax(-1)
    far = pred.label_ids >= 15                      # no label is that long
    with np.errstate(invalid="ignore"):
        recall_far = np.float64((guess[far] == 15).sum()) / np.float64(far.sum())
    return {"hit": float((guess == pred.label_ids).mean()), "recall_far": float(recall_far)}


model = Pointer()
with tempfile.TemporaryDirectory() as tmp:
    args = TrainingArguments(output_dir=tmp, per_device_train_batch_size=4, per_device_eval_batch_size=8,
                             gradient_accumulation_steps=2, num_train_epochs=3, learning_rate=5e-3,
                             lr_scheduler_type="cosine", eval_strategy="epoch", save_strategy="no",
                             logging_strategy="no", report_to="none", disable_tqdm=True, use_cpu=True, seed=3,
                             remove_unused_columns=False)
    trainer = Spoken(model=model, args=args, data_collator=collate, compute_metrics=metrics,
                     train_dataset=[label() for _ in range(27)], eval_dataset=[label() for _ in range(10)])
    for cb in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(cb)
    trainer.train()
    last = trainer.evaluate()
print("hit", last["eval_hit"], "recall_far", last["eval_recall_far"])
print(float(sum(p.detach().double().sum() for p in model.parameters())))
