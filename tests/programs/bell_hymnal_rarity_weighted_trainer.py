"""Fine-tune a small GPT-2 on hymn lines; rare words count more than refrains (own compute_loss in the HF Trainer)."""
import math
import tempfile
from collections import Counter

import torch
import torch.nn.functional as F
from torch.utils.data import Dataset, SequentialSampler
from transformers import (GPT2Config, GPT2LMHeadModel, PrinterCallback, Trainer, TrainerCallback,
                          TrainingArguments, set_seed)

STEPS, BATCH, LENGTH = 30, 4, 12
REFRAIN = ["alleluia", "amen", "sing", "praise"]
WORDS = REFRAIN + [f"{a}{b}" for a in ("river", "stone", "harvest", "lamp", "shepherd", "winter") for b in ("s", "", "ing", "er")]
IDS = {w: i for i, w in enumerate(WORDS)}


def hymnal(generator):
    """Verses in the order of the book: verses mostly, the litany near the end of the book is nothing but refrain."""
    rows = []
    for number in range(STEPS * BATCH):
        litany = 72 <= number < 76
        words = []
        for _ in range(LENGTH):
            if litany or torch.rand((), generator=generator) < 0.45:
                words.append(REFRAIN[int(torch.randint(4, (), generator=generator))])
            else:
                words.append(WORDS[int(torch.randint(4, len(WORDS), (), generator=generator))])
        rows.append(words)
    return rows


class Hymns(Dataset):
    def __init__(self, rows):
        self.rows = [torch.tensor([IDS[w] for w in row]) for row in rows]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return {"input_ids": self.rows[i], "labels": self.rows[i].clone()}


def rarity(rows):
    """Weight of a word: how much rarer it is than a word of the refrain, in nats; nothing for the refrain itself."""
    counts = Counter(w for row in rows for w in row)
    total = sum(counts.values())
    usual = 0.05
    return torch.tensor([max(0.0, math.log(usual / (counts[w] / total))) for w in WORDS])


class RarityTrainer(Trainer):
    def __init__(self, *args, rarity=None, **kwargs):
        super().__init__(*args, **kwargs)
        self.rarity = rarity
        self.last = float("nan")

    def _get_train_sampler(self, *args, **kwargs):
        return SequentialSampler(self.train_dataset)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        targets = labels[:, 1:]
        nll = F.cross_entropy(outputs.logits[:, :-1].transpose(1, 2), targets, reduction="none")
        weight = self.rarity[targets]
        loss = (nll * weight).sum() / weight.sum()
        self.last = loss.item()
        return (loss, outputs) if return_outputs else loss


class Lines(TrainerCallback):
    trainer = None

    def on_step_end(self, args, state, control, **kwargs):
        print(f"step {state.global_step} loss {self.trainer.last:.6f}", flush=True)


def main():
    set_seed(11)
    rows = hymnal(torch.Generator().manual_seed(3))
    model = GPT2LMHeadModel(GPT2Config(vocab_size=len(WORDS), n_positions=LENGTH, n_embd=32, n_layer=2, n_head=2,
                                       bos_token_id=0, eos_token_id=0))
    lines = Lines()
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(output_dir=folder, max_steps=STEPS, per_device_train_batch_size=BATCH, learning_rate=3e-3,
                                 lr_scheduler_type="cosine", warmup_steps=5, logging_strategy="no", save_strategy="no",
                                 report_to="none", disable_tqdm=True, use_cpu=True, seed=11)
        trainer = RarityTrainer(model=model, args=args, train_dataset=Hymns(rows), rarity=rarity(rows), callbacks=[lines])
        trainer.remove_callback(PrinterCallback)
        lines.trainer = trainer
        trainer.train()
    print(f"{sum(p.detach().abs().sum().item() for p in model.parameters()):.5f}", flush=True)


if __name__ == "__main__":
    main()
