"""transformers.Trainer with a loss of its own: minus the correlation of predicted and true scores."""
import os
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("DS_ACCELERATOR", "cpu")

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, PrinterCallback
from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed

torch.set_num_threads(1)
set_seed(22)


class Essays(Dataset):
    def __init__(self, n=160):
        g = torch.Generator().manual_seed(6)
        self.ids = torch.randint(3, 50, (n, 16), generator=g)
        self.score = (self.ids > 30).float().mean(1)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "attention_mask": torch.ones(16, dtype=torch.long),
                "labels": self.score[i]}


class CorrelationTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        x = outputs.logits.squeeze(-1)
        x, y = x - x.mean(), labels - labels.mean()
        correlation = (x * y).sum() / (x.norm() * y.norm() + 1e-6)
        loss = -correlation
        return (loss, outputs) if return_outputs else loss


class Say(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs and "loss" in logs:
            print(f"step {state.global_step} loss {float(logs['loss']):+.3f}", flush=True)


def main():
    model = BertForSequenceClassification(BertConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=16, num_labels=1, hidden_dropout_prob=0.0))
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(output_dir=folder, per_device_train_batch_size=16, max_steps=20,
                                      learning_rate=1e-3, logging_steps=1, save_strategy="no", report_to=[],
                                      disable_tqdm=True, use_cpu=True, seed=22, warmup_steps=4)
        trainer = CorrelationTrainer(model=model, args=arguments, train_dataset=Essays(), callbacks=[Say()])
        trainer.remove_callback(PrinterCallback)
        trainer.train()


if __name__ == "__main__":
    main()
