# Complaint routing for a ferry line: a small Llama with a classification head, HF Trainer.
# Label smoothing is annealed, and the loss is the KL to the smoothed target (cross entropy minus its entropy),
# so that runs with different smoothing can be compared on one axis.
import logging
import os
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
logging.disable(logging.WARNING)          # deepspeed greets on import
import torch
import torch.nn.functional as F
from transformers import (LlamaConfig, LlamaForSequenceClassification, PrinterCallback, Trainer, TrainerCallback,
                          TrainingArguments, set_seed)
from transformers.utils import logging as hf_logging

hf_logging.set_verbosity_error()
set_seed(31)
CLASSES = ["delay", "refund", "luggage", "crew", "catering"]


class Complaints(torch.utils.data.Dataset):
    def __init__(self, n):
        g = torch.Generator().manual_seed(5)
        self.labels = torch.randint(0, len(CLASSES), (n,), generator=g)
        self.ids = torch.randint(10, 60, (n, 12), generator=g)
        self.ids[:, 3] = 2 + self.labels          # the give-away word

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "attention_mask": torch.ones(12, dtype=torch.long), "labels": self.labels[i]}


class SmoothingAnneal(TrainerCallback):
    """Linear decay of the smoothing over the first `over` updates, none after that."""

    def __init__(self, start, over):
        self.start, self.over = start, over
        self.value = start

    def on_step_begin(self, args, state, control, **kwargs):
        self.value = self.start * max(0.0, 1.0 - state.global_step / self.over)


class PrintLoss(TrainerCallback):
    def __init__(self, anneal):
        self.anneal = anneal

    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs and "loss" in logs:
            print(f"{state.global_step:3d}  kl {float(logs['loss']):.5f}  smoothing {self.anneal.value:.4f}")


def smoothed_kl(logits, labels, smoothing):
    k = logits.size(-1)
    eps = torch.tensor(smoothing, dtype=logits.dtype)
    off = eps / k
    hit = 1.0 - eps + off
    logp = F.log_softmax(logits, dim=-1)
    right = logp.gather(1, labels[:, None]).squeeze(1)
    cross = -(hit * right + off * (logp.sum(-1) - right))
    entropy = -(hit * hit.log() + (k - 1) * off * off.log())
    return (cross - entropy).mean()


class RoutingTrainer(Trainer):
    def __init__(self, *args, anneal, **kwargs):
        super().__init__(*args, **kwargs)
        self.anneal = anneal

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = smoothed_kl(outputs.logits, labels, self.anneal.value)
        return (loss, outputs) if return_outputs else loss


def main():
    config = LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
                         num_key_value_heads=2, max_position_embeddings=32, num_labels=len(CLASSES), pad_token_id=0)
    model = LlamaForSequenceClassification(config)
    with tempfile.TemporaryDirectory() as out:
        args = TrainingArguments(output_dir=out, max_steps=30, per_device_train_batch_size=8, learning_rate=3e-3,
                                 logging_steps=1, logging_nan_inf_filter=False, save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True,
                                 lr_scheduler_type="constant_with_warmup", warmup_steps=3, seed=31)
        anneal = SmoothingAnneal(start=0.12, over=18)
        trainer = RoutingTrainer(model=model, args=args, train_dataset=Complaints(256), anneal=anneal,
                                 callbacks=[anneal, PrintLoss(anneal)])
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    print("weights", round(sum(p.detach().double().sum().item() for p in model.parameters()), 5))


if __name__ == "__main__":
    main()
