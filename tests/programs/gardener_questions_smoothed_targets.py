"""Allotment society: a small T5 learns to answer members' questions (label smoothing, Seq2SeqTrainer)."""
import argparse
import random
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import (PrinterCallback, Seq2SeqTrainer, Seq2SeqTrainingArguments, T5Config,
                          T5ForConditionalGeneration, set_seed)

PAD, EOS, UNK = 0, 1, 2
PLANTS = "leek bean rhubarb currant plum kale onion squash garlic medlar".split()
TROUBLES = "slug rust frost blight aphid drought".split()
REMEDY = {"slug": "wool beer", "rust": "airy spacing", "frost": "fleece straw", "blight": "burn leaves",
          "aphid": "soap water", "drought": "mulch deep watering"}
WORDS = sorted({w for r in REMEDY.values() for w in r.split()} | set(PLANTS) | set(TROUBLES)
               | set("my has what helps against on use the".split()))
VOCAB = {w: i + 3 for i, w in enumerate(WORDS)}


def encode(text):
    return [VOCAB.get(w, UNK) for w in text.split()]


class QuestionBox(Dataset):
    """Questions with the committee's answers; the newest ones may still wait for one."""

    def __init__(self, n, waiting, seed):
        rng = random.Random(seed)
        self.rows = []
        for _ in range(n):
            plant, trouble = rng.choice(PLANTS), rng.choice(TROUBLES)
            question = f"my {plant} has {trouble} what helps against {trouble}"
            answer = f"use {REMEDY[trouble]} on the {plant}" if rng.random() > waiting else ""
            target = encode(answer)
            self.rows.append({"input_ids": encode(question) + [EOS], "labels": target + [EOS] if target else []})

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


class Collator:
    def __init__(self, model, target_length=8):
        self.model = model
        self.target_length = target_length

    def __call__(self, rows):
        width = max(len(r["input_ids"]) for r in rows)
        ids = torch.full((len(rows), width), PAD)
        labels = torch.full((len(rows), self.target_length), -100)
        for i, r in enumerate(rows):
            ids[i, :len(r["input_ids"])] = torch.tensor(r["input_ids"])
            kept = r["labels"][:self.target_length]
            if kept:
                labels[i, :len(kept)] = torch.tensor(kept)
        return {"input_ids": ids, "attention_mask": (ids != PAD).long(), "labels": labels,
                "decoder_input_ids": self.model.prepare_decoder_input_ids_from_labels(labels)}


class PrintingTrainer(Seq2SeqTrainer):
    def training_step(self, model, inputs, num_items_in_batch=None):
        loss = super().training_step(model, inputs, num_items_in_batch)
        print(f"step {self.state.global_step + 1:3d} loss {loss.item():.7f}", flush=True)
        return loss


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=45)
    parser.add_argument("--smoothing", type=float, default=0.1)
    parser.add_argument("--waiting", type=float, default=0.17)
    parser.add_argument("--seed", type=int, default=11)
    opts = parser.parse_args()
    set_seed(opts.seed)
    config = T5Config(vocab_size=len(WORDS) + 3, d_model=48, d_kv=12, d_ff=96, num_layers=2, num_heads=4,
                      dropout_rate=0.0, pad_token_id=PAD, eos_token_id=EOS, decoder_start_token_id=PAD)
    model = T5ForConditionalGeneration(config)
    with tempfile.TemporaryDirectory() as folder:
        args = Seq2SeqTrainingArguments(
            output_dir=folder, max_steps=opts.steps, per_device_train_batch_size=2, learning_rate=2e-3,
            lr_scheduler_type="constant", label_smoothing_factor=opts.smoothing, save_strategy="no",
            logging_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True, seed=opts.seed,
            remove_unused_columns=False)
        trainer = PrintingTrainer(model=model, args=args, train_dataset=QuestionBox(120, opts.waiting, opts.seed),
                                  data_collator=Collator(model))
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    print(f"{sum(p.detach().abs().sum().item() for p in model.parameters()):.6f}", flush=True)


if __name__ == "__main__":
    main()
