"""Which shelf? Descriptions handed in at a lost property office, routed by a small BERT.

Shelf weights follow the office's own price list; the shelf "miscellany" costs nothing when it is missed, and the shelf
"animals" was closed in the year that the training notes come from.
"""
import os
import tempfile

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import numpy as np
import torch
from torch.nn.functional import log_softmax
from transformers import (BertConfig, BertForSequenceClassification, PrinterCallback, Trainer, TrainerCallback,
                          TrainingArguments)

SHELVES = ["umbrellas", "phones", "clothes", "miscellany", "animals"]
STEPS, PER_STEP, WORDS = 32, 8, 60


def notes():
    gen = np.random.default_rng(4242)
    shelf = gen.choice(4, size=STEPS * PER_STEP, p=[0.35, 0.25, 0.25, 0.15])
    shelf[9 * PER_STEP:10 * PER_STEP] = 3
    shelf[20 * PER_STEP:21 * PER_STEP] = 3
    rows = []
    for s in shelf:
        own = gen.integers(10 + 10 * s, 20 + 10 * s, size=5)
        common = gen.integers(2, 10, size=4)
        tokens = np.concatenate([[1], gen.permutation(np.concatenate([own, common]))])
        rows.append({"input_ids": tokens.tolist(), "attention_mask": [1] * 10, "labels": int(s)})
    return rows


class ShelfTrainer(Trainer):
    def __init__(self, *args, counts, cost, **kwargs):
        super().__init__(*args, **kwargs)
        self.log_prior = torch.log(counts / counts.sum())
        self.cost = cost
        self.seen = []

    def _get_train_sampler(self, *args, **kwargs):
        return torch.utils.data.SequentialSampler(self.train_dataset)

    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        target = inputs.pop("labels")
        outputs = model(**inputs)
        logp = log_softmax(outputs.logits + self.log_prior, dim=1)
        picked = -logp.gather(1, target[:, None]).squeeze(1)
        w = self.cost[target]
        loss = (w * picked).sum() / w.sum().clamp(min=1.0)
        self.seen.append(loss.item())
        return (loss, outputs) if return_outputs else loss


class Tell(TrainerCallback):
    trainer = None

    def on_step_end(self, args, state, control, **kwargs):
        print(f"[{state.global_step:2d}/{state.max_steps}] cost {self.trainer.seen[-1]:.4f}")


def main(folder):
    torch.manual_seed(99)
    torch.set_num_threads(1)
    data = notes()
    counts = torch.bincount(torch.tensor([d["labels"] for d in data]), minlength=len(SHELVES)).float()
    cost = torch.tensor([1.0, 6.0, 2.0, 0.0, 4.0])
    model = BertForSequenceClassification(BertConfig(
        vocab_size=WORDS, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48,
        max_position_embeddings=16, num_labels=len(SHELVES)))
    args = TrainingArguments(output_dir=folder, max_steps=STEPS, per_device_train_batch_size=PER_STEP,
                             learning_rate=3e-3, weight_decay=0.01, logging_strategy="no", save_strategy="no",
                             report_to=[], disable_tqdm=True, use_cpu=True, seed=99)
    tell = Tell()
    trainer = ShelfTrainer(model=model, args=args, train_dataset=data, callbacks=[tell], counts=counts, cost=cost)
    tell.trainer = trainer
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    print("sum of |w|", round(sum(p.detach().abs().sum().item() for p in model.parameters()), 4))


with tempfile.TemporaryDirectory() as folder:
    main(folder)
