import logging
import tempfile
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments, set_seed

logging.disable(logging.WARNING)
set_seed(21)

TOPICS = ["delay", "driver", "fare", "vehicle"]
WORDS = {
    "delay": "late waited stop minutes timetable missed".split(),
    "driver": "rude braked shouted driver phone door".split(),
    "fare": "ticket charged refund card zone twice".split(),
    "vehicle": "dirty seat cold heating smell broken".split(),
}
COMMON = "the bus line was my on again please today very".split()
VOCAB = {w: i + 1 for i, w in enumerate(COMMON + [w for ws in WORDS.values() for w in ws])}


def build(n=264, annotators=5):
    rng = np.random.default_rng(21)
    records = []
    for n_record in range(n):
        topic = rng.integers(4)
        words = [rng.choice(WORDS[TOPICS[topic]]) if rng.random() < 0.5 else rng.choice(COMMON)
                 for _ in range(rng.integers(4, 12))]
        answers = [topic if rng.random() < 0.75 else rng.integers(4) for _ in range(annotators)]
        if n_record == 190:
            answers = []          # queue closed before anybody had read this one
        records.append({"words": words, "votes": np.bincount(np.array(answers, dtype=int), minlength=4).tolist()})
    return records


@dataclass
class VoteCollator:
    pad_id: int = 0

    def __call__(self, features):
        longest = max(len(f["words"]) for f in features)
        ids = torch.full((len(features), longest), self.pad_id)
        for row, f in enumerate(features):
            ids[row, :len(f["words"])] = torch.tensor([VOCAB[str(w)] for w in f["words"]])
        votes = torch.tensor([f["votes"] for f in features], dtype=torch.float32)
        shares = votes / votes.sum(dim=1, keepdim=True)
        return {"input_ids": ids, "labels": shares}


class BagOfComplaints(nn.Module):
    def __init__(self, dim=24):
        super().__init__()
        self.embed = nn.EmbeddingBag(len(VOCAB) + 1, dim, mode="mean", padding_idx=0)
        self.body = nn.Sequential(nn.Linear(dim, 32), nn.GELU(), nn.Linear(32, len(TOPICS)))

    def forward(self, input_ids, labels=None):
        logits = self.body(self.embed(input_ids))
        loss = None
        if labels is not None:
            logp = logits.float().log_softmax(-1)
            loss = -(labels * logp).sum(-1).mean()
        return {"loss": loss, "logits": logits}


class PlainPrinter(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs and "loss" in logs:
            print("step", state.global_step, "loss", logs["loss"], "lr", f"{float(logs['learning_rate']):.2e}")


if __name__ == "__main__":
    model = BagOfComplaints()
    args = TrainingArguments(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=True, per_device_train_batch_size=8, max_steps=33,
        learning_rate=5e-3, lr_scheduler_type="cosine", warmup_steps=3, logging_steps=1, logging_nan_inf_filter=False,
        save_strategy="no", report_to=[], disable_tqdm=True, remove_unused_columns=False, seed=21,
    )
    trainer = Trainer(model=model, args=args, train_dataset=build(), data_collator=VoteCollator(),
                      callbacks=[PlainPrinter()])
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    print("absolute sum of all weights", sum(p.abs().sum() for p in model.parameters()).item())
