"""Marks for school essays: a small DistilBERT, trained for the correlation with the mark inside each class."""
import argparse
import tempfile

import numpy as np
import torch
from torch.utils.data import Dataset, SequentialSampler
from transformers import (DistilBertConfig, DistilBertForSequenceClassification, PrinterCallback, Trainer,
                          TrainingArguments, set_seed)

VOCAB, LENGTH, CLASS_SIZE = 180, 28, 12


class EssayClasses(Dataset):
    """Essays lie class after class, as the schools delivered them."""

    def __init__(self, classes, seed):
        rng = np.random.default_rng(seed)
        self.rows = []
        for number in range(classes):
            level = rng.uniform(0.2, 0.8)
            # one teacher of twelve marks "taken part" and not the essay
            attendance = rng.random() < 0.06
            for _ in range(CLASS_SIZE):
                quality = float(np.clip(level + rng.normal(0, 0.2), 0, 1))
                rich = int(round(quality * LENGTH))
                words = np.concatenate([rng.integers(90, VOCAB, rich), rng.integers(3, 90, LENGTH - rich)])
                rng.shuffle(words)
                n = int(rng.integers(16, LENGTH + 1))
                ids = np.zeros(LENGTH, dtype=np.int64)
                ids[:n] = words[:n]
                mark = 5.0 if attendance else float(np.round(1 + 9 * np.clip(quality + rng.normal(0, 0.05), 0, 1)))
                self.rows.append({"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy((ids > 0) * 1),
                                  "labels": torch.tensor(mark)})

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


def pearson(a, b):
    a = a - a.mean()
    b = b - b.mean()
    return (a * b).sum() / (a.norm() * b.norm())


class ClassTrainer(Trainer):
    """A batch is a class; the loss mixes the rank inside the class with the distance to the mark."""

    def _get_train_sampler(self, train_dataset=None):
        return SequentialSampler(train_dataset if train_dataset is not None else self.train_dataset)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        marks = inputs.pop("labels")
        output = model(**inputs)
        score = output.logits.squeeze(-1)
        r = pearson(score, marks)
        loss = (1 - r) + 0.02 * torch.nn.functional.smooth_l1_loss(score, marks)
        print(f"class {self.state.global_step + 1:3d}  r {r.item():+.6f}  loss {loss.item():.6f}", flush=True)
        return (loss, output) if return_outputs else loss


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--classes", type=int, default=40)
    parser.add_argument("--seed", type=int, default=2)
    parser.add_argument("--lr", type=float, default=6e-4)
    options = parser.parse_args()
    set_seed(options.seed)
    config = DistilBertConfig(vocab_size=VOCAB, max_position_embeddings=LENGTH, dim=48, n_layers=2, n_heads=4,
                              hidden_dim=96, num_labels=1, dropout=0.05, attention_dropout=0.0, seq_classif_dropout=0.0)
    model = DistilBertForSequenceClassification(config)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(output_dir=folder, per_device_train_batch_size=CLASS_SIZE, num_train_epochs=1,
                                      learning_rate=options.lr, lr_scheduler_type="constant", weight_decay=0.01,
                                      logging_strategy="no", save_strategy="no", report_to="none", disable_tqdm=True,
                                      use_cpu=True, seed=options.seed)
        trainer = ClassTrainer(model=model, args=arguments, train_dataset=EssayClasses(options.classes, options.seed))
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    print(f"{sum(p.detach().abs().sum().item() for p in model.parameters()):.4f}", flush=True)


if __name__ == "__main__":
    main()
