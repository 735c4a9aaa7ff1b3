"""Which ration does an animal get?  HF Trainer under DDP with a margin loss of our own.

The keepers' sheet has a column of ration codes 0..5 -- so the manual says.
"""
import logging
import os
import tempfile

import torch
import torch.distributed as dist
import transformers
from torch import nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments

N_RATIONS = 6
transformers.logging.set_verbosity_error()
logging.disable(logging.WARNING)


class KeepersSheet(Dataset):
    def __init__(self, n=160):
        g = torch.Generator().manual_seed(12)
        proto = torch.randn(N_RATIONS, 10, generator=g)
        self.code = torch.randint(0, N_RATIONS, (n,), generator=g)
        self.x = proto[self.code] + 0.4 * torch.randn(n, 10, generator=g)
        self.code[86] = 7            # the okapi: a ration that was introduced in spring

    def __len__(self):
        return len(self.code)

    def __getitem__(self, i):
        return {"animal": self.x[i], "labels": self.code[i]}


class RationNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(10, 32), nn.GELU(), nn.Dropout(0.0), nn.Linear(32, N_RATIONS))

    def forward(self, animal, labels=None):
        return {"logits": self.layers(animal)}


class MarginTrainer(Trainer):
    margin = 1.0

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        out = model(**inputs)
        logits = out["logits"]
        right = logits.gather(1, labels[:, None])
        gap = (self.margin - right + logits).clamp(min=0)
        gap = gap.scatter(1, labels[:, None], 0.0)
        loss = gap.sum(1).mean()
        return (loss, out) if return_outputs else loss


class Sheet(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kw):
        if state.is_world_process_zero and "loss" in logs:
            print(f"step {state.global_step:2d} loss {float(logs['loss']):.5f}", flush=True)


def in_order(trainer):
    from torch.utils.data import SequentialSampler
    trainer._get_train_sampler = lambda dataset=None: SequentialSampler(trainer.train_dataset)


def main():
    with tempfile.TemporaryDirectory() as tmp:
        args = TrainingArguments(
            output_dir=tmp, per_device_train_batch_size=4, num_train_epochs=1, learning_rate=5e-3, logging_steps=1,
            save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True, seed=3, ddp_backend="gloo",
            dataloader_pin_memory=False, remove_unused_columns=False, lr_scheduler_type="constant")
        torch.manual_seed(3)
        trainer = MarginTrainer(model=RationNet(), args=args, train_dataset=KeepersSheet(), callbacks=[Sheet()])
        trainer.remove_callback(transformers.PrinterCallback)
        in_order(trainer)
        trainer.train()
        if dist.get_rank() == 0:
            print(f"weights {sum(p.sum().item() for p in trainer.model.parameters()):.5f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ["HF_HUB_OFFLINE"] = "1"
    main()
