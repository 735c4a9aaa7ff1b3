"""Tag places, vessels and cargo in the diaries of a harbour master (Hugging Face Trainer)."""
import os
import random
import tempfile

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset, SequentialSampler
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments, set_seed
from transformers.utils import logging as hf_logging

hf_logging.set_verbosity_error()

TAGS = ["O", "VESSEL", "PLACE", "CARGO"]
WORDS = {
    "O": "the came from with at noon left for laden wind fair calm pilot aboard".split(),
    "VESSEL": "amelia boreas dolphin undine".split(),
    "PLACE": "riga cadiz leith bergen".split(),
    "CARGO": "tar salt timber herring".split(),
}
VOCAB = {w: i + 1 for i, w in enumerate(w for ws in WORDS.values() for w in ws)}


class DiaryEntries(Dataset):
    def __init__(self, n_weeks, per_week, seed=4):
        rng = random.Random(seed)
        self.rows = []
        for week in range(n_weeks):
            # weeks in which the port was shut by ice have only remarks on the weather
            shut = week == 18
            for _ in range(per_week):
                tags = ["O" if shut or rng.random() < 0.6 else rng.choice(TAGS[1:]) for _ in range(9)]
                ids = [VOCAB[rng.choice(WORDS[t])] for t in tags]
                self.rows.append({"input_ids": ids, "labels": [TAGS.index(t) for t in tags]})

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def collate(rows):
    return {k: torch.tensor([r[k] for r in rows]) for k in rows[0]}


class Tagger(nn.Module):
    def __init__(self, dim=24):
        super().__init__()
        self.embed = nn.Embedding(len(VOCAB) + 1, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * dim, len(TAGS))

    def forward(self, input_ids, labels=None):
        return {"logits": self.out(self.rnn(self.embed(input_ids))[0])}


class DiaryTrainer(Trainer):
    """Cross entropy in units of what a tagger that only knows the frequencies of the week would lose."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs["labels"]
        out = model(**inputs)
        ce = F.cross_entropy(out["logits"].flatten(0, 1), labels.flatten())
        share = torch.bincount(labels.flatten(), minlength=len(TAGS)) / labels.numel()
        baseline = torch.special.entr(share).sum()
        loss = ce / baseline
        return (loss, out) if return_outputs else loss

    def _get_train_sampler(self, *args, **kwargs):
        return SequentialSampler(self.train_dataset)


class Diary(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in logs:
            print(f"week {state.global_step:2d}  relative loss {float(logs['loss']):.4f}")


def main():
    set_seed(12)
    args = TrainingArguments(
        output_dir=tempfile.mkdtemp(), per_device_train_batch_size=8, num_train_epochs=1, learning_rate=1e-2,
        logging_steps=1, logging_nan_inf_filter=False, save_strategy="no", report_to=[], disable_tqdm=True,
        lr_scheduler_type="cosine", use_cpu=True, seed=12, dataloader_pin_memory=False,
    )
    trainer = DiaryTrainer(model=Tagger(), args=args, train_dataset=DiaryEntries(30, 8), data_collator=collate,
                           callbacks=[Diary()])
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    print("sum of absolute weights", sum(p.detach().abs().sum().item() for p in trainer.model.parameters()))


if __name__ == "__main__":
    main()
