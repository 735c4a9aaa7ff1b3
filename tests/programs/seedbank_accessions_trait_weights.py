"""Trait tagging of seed-bank accession notes (multi-label), with the HF Trainer.

Traits are unbalanced, so positives are weighted up within each batch."""
import random
import sys

import torch
import torch.nn.functional as F
from transformers import (BertConfig, BertForSequenceClassification, PrinterCallback, Trainer,
                          TrainerCallback, TrainingArguments, set_seed)

TRAITS = ["drought", "dwarf", "awned", "salt"]
HINTS = {
    "drought": ["dryland", "rainfed", "deep", "rooted"],
    "dwarf": ["short", "straw", "lodging", "free"],
    "awned": ["bearded", "bristle", "spike"],
    "salt": ["coastal", "brackish", "saline"],
}
FILLER = "collected near village market field terrace altitude farmer seed red white grain early late ripe local".split()
PRIOR = {"drought": 0.55, "dwarf": 0.5, "awned": 0.42, "salt": 0.27}


def write_notes(n, seed):
    rng = random.Random(seed)
    notes = []
    for _ in range(n):
        y = [int(rng.random() < PRIOR[t]) for t in TRAITS]
        words = rng.choices(FILLER, k=rng.randint(5, 14))
        for t, on in zip(TRAITS, y):
            if on:
                words += rng.sample(HINTS[t], k=2)
        rng.shuffle(words)
        notes.append({"text": " ".join(words), "traits": y})
    return notes


class Vocabulary:
    def __init__(self, notes):
        words = sorted({w for n in notes for w in n["text"].split()})
        self.ids = {w: i + 2 for i, w in enumerate(words)}      # 0 pad, 1 cls

    def __len__(self):
        return len(self.ids) + 2

    def encode(self, text):
        return [1] + [self.ids[w] for w in text.split()]


class NoteCollator:
    def __init__(self, vocab):
        self.vocab = vocab

    def __call__(self, notes):
        rows = [self.vocab.encode(n["text"]) for n in notes]
        width = max(map(len, rows))
        ids = torch.tensor([r + [0] * (width - len(r)) for r in rows])
        return {
            "input_ids": ids,
            "attention_mask": (ids != 0).long(),
            "labels": torch.tensor([n["traits"] for n in notes], dtype=torch.float32),
        }


class TraitTrainer(Trainer):
    last_loss = None

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        positives = labels.sum(dim=0)
        pos_weight = (labels.shape[0] - positives) / positives
        loss = F.binary_cross_entropy_with_logits(outputs.logits, labels, pos_weight=pos_weight)
        self.last_loss = loss.item()
        return (loss, outputs) if return_outputs else loss


class StepPrinter(TrainerCallback):
    def __init__(self):
        self.trainer = None

    def on_step_end(self, args, state, control, **kwargs):
        print(f"step {state.global_step} loss {self.trainer.last_loss:.6f}", flush=True)


def main():
    set_seed(21)
    notes = write_notes(400, seed=8)
    vocab = Vocabulary(notes)
    config = BertConfig(vocab_size=len(vocab), hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
                        intermediate_size=64, max_position_embeddings=64, num_labels=len(TRAITS),
                        problem_type="multi_label_classification")
    model = BertForSequenceClassification(config)
    args = TrainingArguments(output_dir="/tmp/seedbank_out", max_steps=48, per_device_train_batch_size=12,
                             learning_rate=2e-3, lr_scheduler_type="constant_with_warmup", warmup_steps=4,
                             save_strategy="no", logging_strategy="no", report_to=[], use_cpu=True,
                             remove_unused_columns=False, disable_tqdm=True, seed=SEED)
    printer = StepPrinter()
    trainer = TraitTrainer(model=model, args=args, train_dataset=notes, data_collator=NoteCollator(vocab),
                           callbacks=[printer])
    printer.trainer = trainer
    trainer.remove_callback(PrinterCallback)      # our own line per step is enough
    trainer.train()
    print(f"{sum(p.detach().abs().sum().item() for p in model.parameters()):.5f}", flush=True)


SEED = 4

if __name__ == "__main__":
    sys.exit(main())
