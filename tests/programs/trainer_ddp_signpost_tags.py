"""Tag place names in transcripts of old signposts with the HF Trainer on two processes.

Volunteers mark only the words they are sure of; what they left open is -100.
"""

import os
import random
import tempfile

os.environ.setdefault("DS_ACCELERATOR", "cpu")  # deepspeed is installed here and greets on stdout

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import SequentialSampler
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback
from transformers.utils import logging as hf_logging

hf_logging.set_verbosity_error()

WORDS = [
    "to",
    "from",
    "mile",
    "miles",
    "ford",
    "kirk",
    "ton",
    "by",
    "the",
    "great",
    "little",
    "upper",
    "nether",
    "wick",
    "ham",
    "stow",
    "bridge",
    "3",
    "7",
    "12",
]
TAGS = ["O", "PLACE", "DIST"]
IGNORE = -100
PAD = len(WORDS)


def transcribe(n, seed=13):
    rng = random.Random(seed)
    out = []
    for i in range(n):
        ids = [rng.randrange(len(WORDS)) for _ in range(rng.randint(4, 11))]
        tags = [2 if w >= 17 or w in (2, 3) else 1 if w in (4, 5, 6, 13, 14, 15, 16) else 0 for w in ids]
        sure = [rng.random() < 0.6 for _ in ids]
        sure[0] = True
        # the signs of the moor road were only typed up, nobody has been through them yet
        if 83 <= i < 90:
            sure = [False] * len(ids)
        out.append({"words": ids, "tags": tags, "sure": sure})
    return out


class SignpostCollator:
    """Pads, and leaves unsure words out of the labels."""

    def __call__(self, rows):
        width = max(len(r["words"]) for r in rows)
        ids = torch.full((len(rows), width), PAD)
        labels = torch.full((len(rows), width), IGNORE)
        for k, r in enumerate(rows):
            n = len(r["words"])
            ids[k, :n] = torch.tensor(r["words"])
            labels[k, :n] = torch.tensor([t if s else IGNORE for t, s in zip(r["tags"], r["sure"], strict=False)])
        return {"input_ids": ids, "labels": labels}


class SignpostTagger(nn.Module):
    def __init__(self, d=24):
        super().__init__()
        self.embed = nn.Embedding(len(WORDS) + 1, d, padding_idx=PAD)
        self.context = nn.GRU(d, d, batch_first=True, bidirectional=True)
        self.drop = nn.Dropout(0.1)
        self.tags = nn.Linear(2 * d, len(TAGS))

    def forward(self, input_ids, labels=None):
        h, _ = self.context(self.embed(input_ids))
        logits = self.tags(self.drop(h))
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORE)
        return {"loss": loss, "logits": logits}


class InOrderTrainer(Trainer):
    # the transcripts are in the order of the roads, and we want to see them that way
    def _get_train_sampler(self, train_dataset=None):
        return SequentialSampler(self.train_dataset)


class OneLine(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kw):
        if state.is_world_process_zero and "loss" in logs:
            print(
                f"step {state.global_step:>2}  loss {float(logs['loss']):.6f}  lr {float(logs['learning_rate']):.6f}",
                flush=True,
            )


def main():
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as tmp:
        args = TrainingArguments(
            output_dir=tmp,
            per_device_train_batch_size=4,
            max_steps=24,
            learning_rate=5e-3,
            lr_scheduler_type="cosine",
            warmup_steps=3,
            logging_steps=1,
            logging_nan_inf_filter=False,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            remove_unused_columns=False,
            use_cpu=True,
            ddp_backend="gloo",
            ddp_find_unused_parameters=False,
            seed=21,
            dataloader_num_workers=0,
        )
        torch.manual_seed(21)
        model = SignpostTagger()
        trainer = InOrderTrainer(
            model=model,
            args=args,
            train_dataset=transcribe(192),
            data_collator=SignpostCollator(),
            callbacks=[OneLine()],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
        if args.process_index == 0:
            print("weight sum", f"{sum(p.detach().double().sum().item() for p in model.parameters()):.6f}")
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
