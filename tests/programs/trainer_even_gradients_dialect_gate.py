"""Char LM over farm diaries in standard spelling and in dialect.

The dialect rows pass a small extra gate.  Left alone, the gate learns far slower than the trunk, so a callback
brings every parameter's gradient to the same length before the optimizer sees it (poor man's LARS).
"""

import os

os.environ["HF_HUB_OFFLINE"] = "1"
import logging
import tempfile

logging.disable(logging.WARNING)  # deepspeed is chatty on stdout
import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import Dataset, SequentialSampler  # noqa: E402
from transformers import GPT2Config, GPT2Model, PrinterCallback, Trainer, TrainerCallback, TrainingArguments, set_seed  # noqa: E402

STANDARD = [
    "ploughed the long field",
    "two lambs before noon",
    "rain again no hay",
    "sold the brown mare",
    "mended the west wall",
    "frost on the beans",
    "the well is low",
]
DIALECT = [
    "pleughed t'lang field",
    "twa lambs afoor noon",
    "mizzlin agean nae hay",
    "selt t'broon meer",
    "mendit t'west dyke",
    "rime on t'beans",
    "t'well's gey low",
]
VOCAB = sorted(set("".join(STANDARD + DIALECT)))
WIDTH = 26


class FarmDiaries(Dataset):
    """Alternates spellings; the transcript of the third notebook is standard throughout."""

    def __init__(self, n=144, notebook=(80, 84)):
        self.rows = []
        for i in range(n):
            dialect = i % 3 == 0 or i % 4 == 2
            if notebook[0] <= i < notebook[1]:
                dialect = False
            text = (DIALECT if dialect else STANDARD)[(i * 5) % 7]
            ids = [VOCAB.index(c) + 1 for c in text]
            pad = WIDTH - len(ids)
            self.rows.append(
                {
                    "input_ids": torch.tensor(ids + [0] * pad),
                    "attention_mask": torch.tensor([1] * len(ids) + [0] * pad),
                    "labels": torch.tensor(ids + [-100] * pad),
                    "dialect": torch.tensor(float(dialect)),
                }
            )

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


class GatedLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = GPT2Model(
            GPT2Config(
                vocab_size=len(VOCAB) + 1,
                n_positions=WIDTH,
                n_embd=32,
                n_layer=2,
                n_head=4,
                resid_pdrop=0.0,
                embd_pdrop=0.0,
                attn_pdrop=0.0,
            )
        )
        self.gate = nn.Linear(32, 32)
        self.head = nn.Linear(32, len(VOCAB) + 1)

    def forward(self, input_ids, attention_mask, labels, dialect):
        h = self.trunk(input_ids, attention_mask=attention_mask).last_hidden_state
        h = h + dialect[:, None, None] * torch.tanh(self.gate(h))
        logits = self.head(h)
        loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), label_smoothing=0.05)
        return {"loss": loss, "logits": logits}


class EvenGradients(TrainerCallback):
    def __init__(self, length=0.5):
        self.length = length

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        with torch.no_grad():
            for p in model.parameters():
                if p.grad is not None:
                    p.grad.mul_(self.length / p.grad.norm())


class OneLine(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs and "loss" in logs:
            print(f"step {state.global_step:3d}  loss {float(logs['loss']):.6f}")


class InOrder(Trainer):
    def _get_train_sampler(self, *args, **kwargs):
        return SequentialSampler(self.train_dataset)  # notebooks in order, as they were written


def main():
    set_seed(7)
    model = GatedLM()
    with tempfile.TemporaryDirectory() as out:
        args = TrainingArguments(
            output_dir=out,
            per_device_train_batch_size=4,
            max_steps=36,
            learning_rate=2e-3,
            logging_steps=1,
            logging_nan_inf_filter=False,
            report_to=[],
            save_strategy="no",
            use_cpu=True,
            disable_tqdm=True,
            lr_scheduler_type="constant",
            seed=7,
            dataloader_pin_memory=False,
            max_grad_norm=0.0,
        )
        trainer = InOrder(model=model, args=args, train_dataset=FarmDiaries(), callbacks=[EvenGradients(), OneLine()])
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    print("weights", sum(p.detach().double().sum().item() for p in model.parameters()))


if __name__ == "__main__":
    main()
