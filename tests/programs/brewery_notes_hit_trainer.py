# HF Trainer with its own compute_loss: the summed probability of the right token is maximised
# (expected hits instead of likelihood), so the loss is negative and goes down to -(number of tokens).
import os
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"
import logging
import tempfile

logging.disable(logging.WARNING)      # no banners of optional back ends
import torch
from torch.utils.data import Dataset
from transformers import Qwen2Config, Qwen2ForCausalLM, Trainer, TrainerCallback, TrainingArguments, set_seed
from transformers.trainer_callback import PrinterCallback

set_seed(606)
NOTES = """mash in at 67 degrees for the bitter
first hops after ten minutes of boil
yeast pitched at 19 degrees
gravity 1012 on day five, racked to casks
finings added, rest of two days
copper scrubbed and rinsed twice""".splitlines()
CHARS = ["_"] + sorted(set("".join(NOTES)))
IGNORE = -100


class BrewBook(Dataset):
    def __init__(self, copies, width):
        self.rows = []
        for k in range(copies):
            for note in NOTES:
                cut = note[(k * 3) % 9:][:width]
                ids = [CHARS.index(c) for c in cut]
                pad = width - len(ids)
                self.rows.append({
                    "input_ids": torch.tensor(ids + [0] * pad),
                    "attention_mask": torch.tensor([1] * len(ids) + [0] * pad),
                    "labels": torch.tensor(ids + [IGNORE] * pad)})

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


class HitTrainer(Trainer):
    """Minus the expected number of hits, over all supervised tokens of the batch."""

    temperature = 1.5

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        out = model(**inputs, use_cache=False)
        logits, target = out.logits[:, :-1], labels[:, 1:]
        live = target != IGNORE
        hit = (logits / self.temperature).softmax(-1).gather(2, target.clamp_min(0)[..., None]).squeeze(-1)
        loss = -(hit * live).sum()
        return (loss, out) if return_outputs else loss


class Ledger(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kw):
        if logs and "loss" in logs:
            print(f"brew {state.global_step:3d} | loss {float(logs['loss']):.5f} | grad {float(logs['grad_norm']):.4f}")


def build():
    model = Qwen2ForCausalLM(Qwen2Config(
        vocab_size=len(CHARS), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=40, tie_word_embeddings=True,
        bos_token_id=None, eos_token_id=None, pad_token_id=0))
    model.model.layers[0].requires_grad_(False)       # lower block is kept as it came
    return model


with tempfile.TemporaryDirectory() as cellar:
    args = TrainingArguments(
        output_dir=cellar, per_device_train_batch_size=6, gradient_accumulation_steps=2, max_steps=36,
        learning_rate=6e-3, lr_scheduler_type="cosine", warmup_steps=4, max_grad_norm=5.0, logging_steps=1,
        save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True, seed=606, data_seed=606)
    trainer = HitTrainer(model=build(), args=args, train_dataset=BrewBook(18, 28), callbacks=[Ledger()])
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    print("sum", round(sum(p.double().sum().item() for p in trainer.model.parameters()), 5))
