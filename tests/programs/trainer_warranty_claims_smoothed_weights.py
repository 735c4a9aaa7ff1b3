"""Claim type classifier for the warranty desk: tiny BERT, HF Trainer, class weights from the batch itself (the mix of
claims changes by season, global weights were always out of date) and some label smoothing."""
# ruff: noqa: E402

import logging as pylogging
import os
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
pylogging.disable(pylogging.WARNING)  # chatter of the imports
import torch
from torch.utils.data import Dataset, SequentialSampler
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)
from transformers.utils import logging

logging.set_verbosity_error()
logging.disable_progress_bar()
NAMES = ["battery", "screen", "hinge", "water"]


class Claims(Dataset):
    def __init__(self, n=16 * 22, seed=31):
        g = torch.Generator().manual_seed(seed)
        self.labels = torch.arange(n) % 4
        self.labels = self.labels[torch.randperm(n, generator=g)]
        # the dry weeks of July, no water damage came in
        dry = slice(16 * 14, 16 * 15)
        self.labels[dry] = torch.where(self.labels[dry] == 3, 0, self.labels[dry])
        self.ids = torch.randint(10, 100, (n, 12), generator=g)
        self.ids[:, 0] = 2
        self.ids[:, 1:4] = 10 + self.labels[:, None] * 20 + torch.randint(0, 20, (n, 3), generator=g)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "attention_mask": torch.ones(12, dtype=torch.long), "labels": self.labels[i]}


class SeasonalTrainer(Trainer):
    smoothing = 0.1

    def _get_train_sampler(self, *args, **kwargs):
        return SequentialSampler(self.train_dataset)  # in order of arrival

    def batch_weights(self, y, k):
        counts = torch.bincount(y, minlength=k).float()
        return y.numel() / (k * counts)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        y = inputs.pop("labels")
        out = model(**inputs)
        w = self.batch_weights(y, out.logits.size(-1))
        logp = out.logits.log_softmax(-1)
        hard = -(w[y] * logp.gather(1, y[:, None]).squeeze(1))
        soft = -(logp * w).mean(-1)
        loss = ((1 - self.smoothing) * hard + self.smoothing * soft).sum() / w[y].sum()
        return (loss, out) if return_outputs else loss


class OneLine(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kw):
        if "loss" in logs:
            print(f"step {state.global_step} loss {float(logs['loss']):.6f}", flush=True)


def main():
    set_seed(6)
    model = BertForSequenceClassification(
        BertConfig(
            vocab_size=100,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=64,
            max_position_embeddings=16,
            num_labels=len(NAMES),
        )
    )
    with tempfile.TemporaryDirectory() as tmp:
        args = TrainingArguments(
            output_dir=tmp,
            per_device_train_batch_size=16,
            num_train_epochs=1,
            learning_rate=2e-3,
            logging_steps=1,
            logging_nan_inf_filter=False,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
            lr_scheduler_type="cosine",
            seed=6,
        )
        trainer = SeasonalTrainer(model=model, args=args, train_dataset=Claims(), callbacks=[OneLine()])
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    print("checksum", f"{sum(p.detach().double().sum() for p in model.parameters()).item():.6f}")


if __name__ == "__main__":
    main()
