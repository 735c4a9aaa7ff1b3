"""Masked residues of short peptides: BertForMaskedLM from a tiny random config, HF Trainer,
gradient accumulation, and a loss that is a sum in bits and not a mean."""
import os
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import (BertConfig, BertForMaskedLM, PrinterCallback, ProgressCallback, Trainer, TrainerCallback,
                          TrainingArguments)

os.environ.setdefault("DS_ACCELERATOR", "cpu")              # no word from deepspeed, if it is there
torch.set_num_threads(1)
VOCAB, LENGTH, MASK = 24, 18, 23


class Peptides(Dataset):
    def __init__(self, n=96):
        g = torch.Generator().manual_seed(0)
        motif = torch.randint(0, 20, (6,), generator=g)
        self.rows = []
        for _ in range(n):
            residues = motif.repeat(3).clone()
            noise = torch.rand(LENGTH, generator=g) < 0.1
            residues[noise] = torch.randint(0, 20, (int(noise.sum()),), generator=g)
            hidden = torch.rand(LENGTH, generator=g) < 0.2
            hidden[0] = True                                  # never a row without a label
            self.rows.append({
                "input_ids": torch.where(hidden, torch.tensor(MASK), residues),
                "labels": torch.where(hidden, residues, torch.tensor(-100)),
                "attention_mask": torch.ones(LENGTH, dtype=torch.long)})

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


class BitsTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        out = model(**inputs)
        nats = torch.nn.functional.cross_entropy(out.logits.flatten(0, 1), labels.flatten(), reduction="sum")
        bits = nats / 0.6931471805599453
        return (bits, out) if return_outputs else bits


class Lines(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kw):
        if "loss" in logs:
            print(f"step {state.global_step:02d} bits {logs['loss']:.3f}")


def main():
    torch.manual_seed(0)
    model = BertForMaskedLM(BertConfig(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
                                       intermediate_size=64, max_position_embeddings=32))
    with tempfile.TemporaryDirectory() as where:
        args = TrainingArguments(output_dir=where, per_device_train_batch_size=8, gradient_accumulation_steps=2,
                                 num_train_epochs=4, learning_rate=2e-3, logging_steps=1, report_to=[], use_cpu=True,
                                 save_strategy="no", disable_tqdm=True, seed=0, warmup_steps=4)
        trainer = BitsTrainer(model=model, args=args, train_dataset=Peptides(), callbacks=[Lines()])
        trainer.remove_callback(PrinterCallback)
        trainer.remove_callback(ProgressCallback)
        trainer.train()


if __name__ == "__main__":
    main()
