# ruff: noqa: E402
"""Character model of an apothecary's ledger (who writes "2 drachms" and who draws the sign?).

HF Trainer on two CPU processes:
    torchrun --nproc_per_node 2 trainer_ledger_abbreviations_two_ranks.py
"""

import logging
import os
import random
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
logging.getLogger("DeepSpeed").disabled = True  # it announces itself on stdout

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset, SequentialSampler
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback

DRUGS = ["rhubarb", "senna", "myrrh", "camphor", "squill", "aloes", "opium"]
UNITS = ["oz", "dr", "scr", "gr"]


def transcribe(n=256, seed=1743):
    rng = random.Random(seed)
    lines = [
        f"{rng.choice(DRUGS)} {rng.randint(1, 12)} {rng.choice(UNITS)}; {rng.choice('sd')}{rng.randint(0, 9)}"
        for _ in range(n)
    ]
    # from here on the new journeyman keeps the book; one line in his own hand
    lines[86] = "myrrh \u2125 3; s4"
    return lines


class Ledger(Dataset):
    def __init__(self, lines):
        self.lines = lines

    def __len__(self):
        return len(self.lines)

    def __getitem__(self, i):
        return {"line": self.lines[i]}


class CharCollator:
    """Alphabet of the pilot pages; 0 is padding."""

    def __init__(self, pilot):
        self.alphabet = {c: i + 1 for i, c in enumerate(sorted(set("".join(pilot))))}

    @property
    def size(self):
        return len(self.alphabet) + 1

    def __call__(self, rows):
        # characters that the pilot did not have share one id after the last
        ids = [[self.alphabet.get(c, self.size) for c in r["line"]] for r in rows]
        width = max(map(len, ids))
        ids = torch.tensor([r + [0] * (width - len(r)) for r in ids])
        return {"ids": ids, "labels": ids.masked_fill(ids == 0, -100)}


class CharLM(nn.Module):
    def __init__(self, size, dim=24):
        super().__init__()
        self.embed = nn.Embedding(size, dim, padding_idx=0)
        self.rnn = nn.GRU(dim, 40, batch_first=True)
        self.head = nn.Linear(40, size)

    def forward(self, ids, labels=None):
        hidden, _ = self.rnn(self.embed(ids))
        logits = self.head(hidden)
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
        return {"loss": loss, "logits": logits}


class PageOrderTrainer(Trainer):
    def _get_train_sampler(self, *args, **kwargs):
        return SequentialSampler(self.train_dataset)  # the ledger is read in its own order


class OneLine(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if state.is_world_process_zero and "loss" in (logs or {}):
            print(
                f"{state.global_step:3d} loss {float(logs['loss']):.4f} |g| {float(logs['grad_norm']):.4f}", flush=True
            )


def main():
    lines = transcribe()
    collate = CharCollator(lines[:64])
    with tempfile.TemporaryDirectory() as tmp:
        args = TrainingArguments(
            output_dir=tmp,
            use_cpu=True,
            ddp_backend="gloo",
            seed=5,
            max_steps=30,
            per_device_train_batch_size=4,
            learning_rate=4e-3,
            lr_scheduler_type="linear",
            logging_steps=1,
            logging_nan_inf_filter=False,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            remove_unused_columns=False,
            dataloader_pin_memory=False,
        )
        torch.set_num_threads(1)
        torch.manual_seed(5)
        model = CharLM(collate.size)
        trainer = PageOrderTrainer(
            model=model, args=args, train_dataset=Ledger(lines), data_collator=collate, callbacks=[OneLine()]
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
        if trainer.is_world_process_zero():
            print("weights", f"{sum(p.detach().double().sum().item() for p in model.parameters()):.5f}")


if __name__ == "__main__":
    main()
