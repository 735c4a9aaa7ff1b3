"""Routes support tickets with a small BERT: HF Trainer, logit adjustment (Menon et al.) with a running class prior."""
import os
import tempfile

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("DS_ACCELERATOR", "cpu")
import torch
import torch.nn.functional as F
from transformers import (BertConfig, BertForSequenceClassification, PrinterCallback, Trainer, TrainingArguments,
                          set_seed)

TEAMS = ["billing", "login", "shipping", "returns", "invoice", "legal", "press"]
VOCAB, LENGTH = 80, 12


class Tickets(torch.utils.data.Dataset):
    """In the order in which they came in. The press writes seldom."""

    def __init__(self, n, seed, press_at=()):
        gen = torch.Generator().manual_seed(seed)
        weights = torch.tensor([40.0, 30.0, 20.0, 12.0, 8.0, 5.0, 0.0])
        self.labels = torch.multinomial(weights, n, replacement=True, generator=gen)
        for i in press_at:
            self.labels[i] = TEAMS.index("press")
        self.ids = torch.randint(20, VOCAB, (n, LENGTH), generator=gen)
        self.ids[:, 3] = 5 + self.labels
        self.ids[:, 0] = 1

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "attention_mask": torch.ones(LENGTH, dtype=torch.long),
                "labels": self.labels[i]}


class LogitAdjustedTrainer(Trainer):
    def __init__(self, *args, history, tau=1.0, **kwargs):
        super().__init__(*args, **kwargs)
        self.tau = tau
        self.counts = torch.bincount(history, minlength=len(TEAMS)).float()

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        log_prior = torch.log(self.counts / self.counts.sum())
        loss = F.cross_entropy(outputs.logits + self.tau * log_prior, labels)
        self.counts += torch.bincount(labels, minlength=len(TEAMS))
        return (loss, outputs) if return_outputs else loss

    def training_step(self, *args, **kwargs):
        loss = super().training_step(*args, **kwargs)
        print(f"step {self.state.global_step + 1} loss {loss.item():.5f}")
        return loss

    def _get_train_sampler(self, *args, **kwargs):
        return torch.utils.data.SequentialSampler(self.train_dataset)


def main():
    set_seed(77)
    history = Tickets(60, seed=1).labels
    train = Tickets(30 * 8, seed=2, press_at=(131, 170, 203))
    model = BertForSequenceClassification(BertConfig(
        vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=16, num_labels=len(TEAMS), hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))
    args = TrainingArguments(output_dir=tempfile.mkdtemp(), per_device_train_batch_size=8, num_train_epochs=1,
                             learning_rate=3e-3, lr_scheduler_type="cosine", warmup_steps=3, use_cpu=True,
                             logging_steps=1000, save_strategy="no", report_to=[], disable_tqdm=True)
    trainer = LogitAdjustedTrainer(model=model, args=args, train_dataset=train, history=history)
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    print("finite", int(all(p.isfinite().all() for p in model.parameters())))


if __name__ == "__main__":
    main()
