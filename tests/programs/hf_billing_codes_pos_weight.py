"""Multi-label billing codes from discharge letters. Codes are unbalanced, so each batch brings a pos_weight
(negatives over positives, per code) along for the loss."""
import os
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("DS_ACCELERATOR", "cpu")

import numpy as np
import torch
import torch.nn.functional as F
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback

CODES = ["I10", "E11", "J45", "N18"]
PREVALENCE = np.array([0.75, 0.6, 0.55, 0.5])


def letters(n, seed):
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(n):
        y = (rng.random(len(CODES)) < PREVALENCE).astype(np.float32)
        if 112 <= i < 120:                        # letters of the maternity ward
            y[3] = 0.0
        words = rng.integers(20, 120, size=rng.integers(8, 20))
        for c in np.flatnonzero(y):
            words[rng.integers(len(words))] = 5 + c
        rows.append({"words": words, "codes": y})
    return rows


class LetterCollator:
    def __init__(self, pad=0):
        self.pad = pad

    def __call__(self, rows):
        longest = max(len(r["words"]) for r in rows)
        ids = np.full((len(rows), longest), self.pad, dtype=np.int64)
        for i, r in enumerate(rows):
            ids[i, : len(r["words"])] = r["words"]
        codes = np.stack([r["codes"] for r in rows])
        positive = codes.sum(axis=0)
        with np.errstate(divide="ignore"):
            weight = (len(rows) - positive) / positive
        return {
            "input_ids": torch.from_numpy(ids),
            "attention_mask": torch.from_numpy((ids != self.pad).astype(np.int64)),
            "labels": torch.from_numpy(codes),
            "pos_weight": torch.from_numpy(weight.astype(np.float32)),
        }


class CodingTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        weight = inputs.pop("pos_weight")
        labels = inputs.pop("labels")
        out = model(**inputs)
        loss = F.binary_cross_entropy_with_logits(out.logits, labels, pos_weight=weight)
        return (loss, out) if return_outputs else loss

    def _get_train_sampler(self, *args, **kwargs):
        return torch.utils.data.SequentialSampler(self.train_dataset)


class Protocol(TrainerCallback):
    def on_step_end(self, args, state, control, model=None, **kw):
        size = sum(p.detach().double().square().sum() for p in model.parameters()).sqrt().item()
        print(f"step {state.global_step} weights {size:.5f}")


def main():
    torch.manual_seed(14)
    config = BertConfig(vocab_size=128, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
                        intermediate_size=64, max_position_embeddings=32, num_labels=len(CODES),
                        problem_type="multi_label_classification")
    model = BertForSequenceClassification(config)
    args = TrainingArguments(output_dir=tempfile.mkdtemp(), per_device_train_batch_size=8, seed=14,
                             gradient_accumulation_steps=2, max_steps=14, learning_rate=1e-3, save_strategy="no",
                             logging_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True,
                             remove_unused_columns=False, dataloader_pin_memory=False, max_grad_norm=0.0)
    trainer = CodingTrainer(model=model, args=args, train_dataset=letters(224, 15), data_collator=LetterCollator(),
                            callbacks=[Protocol()])
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    print("finite", int(all(p.isfinite().all() for p in model.parameters())))


if __name__ == "__main__":
    main()
