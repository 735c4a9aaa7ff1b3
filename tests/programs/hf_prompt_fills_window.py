"""Supervised fine-tuning with transformers.Trainer; only the answer is supervised, and rows are cut to 24 tokens."""
import os
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("DS_ACCELERATOR", "cpu")

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed

torch.set_num_threads(1)
set_seed(13)

WINDOW, VOCABULARY = 24, 60


class Dialogues(Dataset):
    """Questions of 6 to 14 tokens and answers of 6; two long questions stand side by side."""

    def __init__(self, n=56):
        g = torch.Generator().manual_seed(1)
        self.rows = []
        for i in range(n):
            length = int(torch.randint(6, 15, (1,), generator=g))
            if i in (30, 31):
                length = 40
            question = torch.randint(10, VOCABULARY, (length,), generator=g)
            answer = (question[:6] + 1) % VOCABULARY
            ids = torch.cat([question, answer])[:WINDOW]
            labels = torch.cat([torch.full_like(question, -100), answer])[:WINDOW]
            self.rows.append((ids, labels))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        ids, labels = self.rows[i]
        pad = WINDOW - len(ids)
        return {"input_ids": torch.cat([ids, torch.zeros(pad, dtype=torch.long)]),
                "attention_mask": torch.cat([torch.ones_like(ids), torch.zeros(pad, dtype=torch.long)]),
                "labels": torch.cat([labels, torch.full((pad,), -100)])}


class InOrder(Trainer):
    def _get_train_sampler(self, *args, **kwargs):
        return torch.utils.data.SequentialSampler(self.train_dataset)


class Say(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs and "loss" in logs:
            print(f"step {state.global_step} loss {float(logs['loss']):.3f}", flush=True)


def main():
    model = GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_positions=WINDOW, n_embd=32, n_layer=2, n_head=2,
                                       bos_token_id=1, eos_token_id=2))
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(output_dir=folder, per_device_train_batch_size=2, num_train_epochs=1,
                                      learning_rate=1e-3, logging_steps=1, save_strategy="no", report_to=[],
                                      disable_tqdm=True, use_cpu=True, seed=13,
                                      lr_scheduler_type="constant")
        trainer = InOrder(model=model, args=arguments, train_dataset=Dialogues(), callbacks=[Say()])
        trainer.remove_callback(__import__("transformers").PrinterCallback)
        trainer.train()
    print("finite", int(all(bool(torch.isfinite(p).all()) for p in model.parameters())))


if __name__ == "__main__":
    main()
