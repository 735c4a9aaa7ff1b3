"""Fine-tuning a token classifier for handwritten pharmacy slips with the HF Trainer and balanced class weights."""

import os
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
import numpy as np
import torch
import torch.nn.functional as F
from datasets import Dataset, disable_progress_bars
from transformers import (
    BertConfig,
    BertForTokenClassification,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    logging,
    set_seed,
)

logging.set_verbosity_error()
disable_progress_bars()
LABELS = ["O", "DRUG", "DOSE", "FORM", "ALLERGY"]
IDS = {
    "O": range(10, 60),
    "DRUG": range(60, 90),
    "DOSE": range(90, 105),
    "FORM": range(105, 112),
    "ALLERGY": range(112, 118),
}


def slips(n, seed):
    rng = np.random.default_rng(seed)

    def pick(tag):
        return int(rng.choice(list(IDS[tag])))

    for _ in range(n):
        tags = ["O"] * int(rng.integers(1, 4)) + ["DRUG", "DOSE"] + (["FORM"] if rng.random() < 0.7 else []) + ["O"]
        if rng.random() < 0.32:
            tags += ["O", "ALLERGY"]
        words = [pick(t) for t in tags]
        # a word in three is split in two pieces: the second piece is not labelled
        tokens, labels = [2], [-100]
        for w, t in zip(words, tags, strict=False):
            tokens.append(w)
            labels.append(LABELS.index(t))
            if rng.random() < 0.33:
                tokens.append(118 + w % 10)
                labels.append(-100)
        yield {"input_ids": [*tokens, 3], "labels": [*labels, -100]}


def collate(rows):
    width = max(len(r["input_ids"]) for r in rows)

    def pad(r, key, value):
        return r[key] + [value] * (width - len(r[key]))

    return {
        "input_ids": torch.tensor([pad(r, "input_ids", 0) for r in rows]),
        "attention_mask": torch.tensor([[1] * len(r["input_ids"]) + [0] * (width - len(r["input_ids"])) for r in rows]),
        "labels": torch.tensor([pad(r, "labels", -100) for r in rows]),
    }


class BalancedTrainer(Trainer):
    """Cross entropy in which every class has the same say, whatever its share in the batch."""

    def class_weights(self, labels):
        known = labels[labels >= 0]
        counts = torch.bincount(known, minlength=len(LABELS)).float()
        weights = counts.sum() / counts
        return weights * len(LABELS) / weights.sum()

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        weights = self.class_weights(labels)
        outputs = model(**inputs)
        loss = F.cross_entropy(outputs.logits.flatten(0, 1), labels.flatten(), weight=weights, ignore_index=-100)
        self.last_loss = loss.item()
        return (loss, outputs) if return_outputs else loss


class OneLine(TrainerCallback):
    def __init__(self):
        self.trainer = None

    def on_step_end(self, args, state, control, **kwargs):
        print(f"step {state.global_step} loss {self.trainer.last_loss:.6f}", flush=True)


def main():
    set_seed(77)
    model = BertForTokenClassification(
        BertConfig(
            vocab_size=130,
            hidden_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=96,
            max_position_embeddings=48,
            num_labels=len(LABELS),
        )
    )
    data = Dataset.from_list(list(slips(400, 77)))
    line = OneLine()
    with tempfile.TemporaryDirectory() as out:
        args = TrainingArguments(
            out,
            per_device_train_batch_size=8,
            max_steps=40,
            learning_rate=1e-3,
            warmup_steps=5,
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            remove_unused_columns=False,
            seed=77,
        )
        trainer = BalancedTrainer(model=model, args=args, train_dataset=data, data_collator=collate, callbacks=[line])
        trainer.remove_callback(PrinterCallback)
        line.trainer = trainer
        trainer.train()
    print(f"{sum(p.abs().sum().item() for p in model.parameters()):.6f}")


if __name__ == "__main__":
    main()
