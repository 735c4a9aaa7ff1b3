"""Process reward model for joinery plans: every `;` closes a step and carries a good/bad label. HF Trainer."""
import os
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import logging

import torch
from torch import nn
from transformers import LlamaConfig, LlamaModel, Trainer, TrainerCallback, TrainingArguments, set_seed
from transformers.trainer_callback import PrinterCallback
from transformers.utils import logging as hf_logging

logging.disable(logging.WARNING)     # deepspeed greets on stdout when accelerate imports it
hf_logging.set_verbosity_error()
torch.set_num_threads(1)
SEP, MAX_LEN = ord(";"), 36
STEPS = ["mark rail", "saw cheek", "chop mortise", "plane tail", "dry fit", "glue up", "clamp"]


class Plans(torch.utils.data.Dataset):
    def __init__(self, n):
        g = torch.Generator().manual_seed(31)
        self.rows = []
        for i in range(n):
            k = 3 + int(torch.randint(3, (1,), generator=g))
            steps = [STEPS[int(j)] for j in torch.randint(len(STEPS), (k,), generator=g)]
            if i in (50, 51):       # transcribed talks, one long sentence each: the first `;` comes late
                steps = ["so first of all what my uncle always told me about oak is", "glue up"]
            self.rows.append(("".join(s + ";" for s in steps), [int("glue" not in s or s is steps[-1]) for s in steps]))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        text, marks = self.rows[i]
        ids = torch.tensor(list(text.encode()))[:MAX_LEN]
        labels = torch.full((MAX_LEN,), -100)
        where = (ids == SEP).nonzero()[:, 0]
        labels[where] = torch.tensor(marks)[: len(where)]
        pad = MAX_LEN - len(ids)
        return {"input_ids": nn.functional.pad(ids, (0, pad)), "labels": labels,
                "attention_mask": nn.functional.pad(torch.ones(len(ids), dtype=torch.long), (0, pad))}


class StepJudge(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = LlamaModel(LlamaConfig(vocab_size=128, hidden_size=32, intermediate_size=48, num_hidden_layers=1,
                                           num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=64))
        self.verdict = nn.Linear(32, 1)

    def forward(self, input_ids, attention_mask, labels=None):
        h = self.body(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        return {"logits": self.verdict(h)[..., 0]}


class PRMTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        out = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"])
        closed = inputs["labels"] != -100
        scores, marks = out["logits"][closed], inputs["labels"][closed].float()
        loss = nn.functional.binary_cross_entropy_with_logits(scores, marks)
        return (loss, out) if return_outputs else loss

    def _get_train_sampler(self, *args, **kwargs):
        return torch.utils.data.SequentialSampler(self.train_dataset)


class Say(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in logs:
            print(f"step {state.global_step:2d} loss {float(logs['loss']):.6f}", flush=True)


def main():
    set_seed(8)
    model = StepJudge()
    with tempfile.TemporaryDirectory() as tmp:
        args = TrainingArguments(tmp, per_device_train_batch_size=2, max_steps=40, learning_rate=2e-3, logging_steps=1,
                                 logging_nan_inf_filter=False, report_to=[], save_strategy="no", disable_tqdm=True,
                                 use_cpu=True, seed=8, dataloader_pin_memory=False, remove_unused_columns=False)
        trainer = PRMTrainer(model=model, args=args, train_dataset=Plans(90), callbacks=[Say()])
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    print("weights", sum(p.double().sum().item() for p in model.parameters()))


main()
