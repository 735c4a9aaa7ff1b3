"""Classifies notices to mariners with a tiny BERT and free large-batch adversarial training (FreeLB):
every training step climbs on the embeddings twice and averages the gradients of both."""
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("DS_ACCELERATOR", "cpu")
import torch
from torch.utils.data import Dataset
from transformers import (BertConfig, BertForSequenceClassification, PrinterCallback, Trainer, TrainingArguments,
                          set_seed)
from transformers.utils import logging

logging.set_verbosity_error()
VOCAB, LENGTH = 120, 12


class Notices(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.rows = []
        for _ in range(n):
            label = int(torch.randint(3, (1,), generator=g))
            size = int(torch.randint(5, LENGTH + 1, (1,), generator=g))
            words = torch.randint(40, VOCAB, (size,), generator=g)
            hint = torch.randint(4 + 12 * label, 16 + 12 * label, (size,), generator=g)
            words = torch.where(torch.rand(size, generator=g) < 0.6, hint, words)
            ids = torch.zeros(LENGTH, dtype=torch.long)
            ids[:size] = words
            self.rows.append({"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": label})

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


class FreeLBTrainer(Trainer):
    ascents, radius, ascent_rate = 2, 0.2, 0.1

    def training_step(self, model, inputs, num_items_in_batch=None):
        model.train()
        inputs = self._prepare_inputs(inputs)
        ids, mask, labels = inputs["input_ids"], inputs["attention_mask"], inputs["labels"]
        table = self.accelerator.unwrap_model(model).get_input_embeddings()
        width = table.embedding_dim
        keep = mask.unsqueeze(-1).float()
        sizes = keep.sum((1, 2), keepdim=True) * width
        delta = torch.empty(*ids.shape, width).uniform_(-1, 1) * keep * self.radius / sizes.sqrt()
        total = 0.0
        for _ in range(self.ascents):
            delta.requires_grad_(True)
            out = model(inputs_embeds=table(ids) + delta, attention_mask=mask, labels=labels)
            loss = out.loss / self.ascents
            self.accelerator.backward(loss)
            total = total + loss.detach()
            g = delta.grad
            norm = g.flatten(1).norm(dim=1).clamp_min(1e-8).view(-1, 1, 1)
            delta = (delta + self.ascent_rate * g / norm).detach()
            size = delta.flatten(1).norm(dim=1).view(-1, 1, 1)
            delta = delta * (self.radius / size).clamp_max(1.0)
        print(f"step {self.state.global_step + 1} adversarial loss {total.item():.5f}", flush=True)
        return total


def main():
    set_seed(8)
    model = BertForSequenceClassification(BertConfig(
        vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
        max_position_embeddings=LENGTH, initializer_range=0.15, num_labels=3, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))
    args = TrainingArguments(output_dir="/tmp/freelb_notices", max_steps=27, per_device_train_batch_size=8,
                             learning_rate=6e-3, lr_scheduler_type="linear", warmup_steps=4, report_to=[],
                             save_strategy="no", logging_strategy="no", use_cpu=True, disable_tqdm=True, seed=8)
    trainer = FreeLBTrainer(model=model, args=args, train_dataset=Notices(256, seed=8))
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    print(f"norm {torch.cat([p.detach().flatten() for p in model.parameters()]).norm().item():.5f}", flush=True)


if __name__ == "__main__":
    main()
