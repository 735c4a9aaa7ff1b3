"""When does the doorbell ring next? A recurrent marked point process (RMTPP) trained by the Hugging Face Trainer.

Gaps are in hours. One house still sends them in seconds."""
import random
import tempfile

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel, PretrainedConfig, PrinterCallback, Trainer, TrainingArguments, set_seed

CALLERS = ["post", "parcel", "neighbour", "child", "cat sitter"]


class BellConfig(PretrainedConfig):
    model_type = "bell"

    def __init__(self, marks=5, dim=24, hidden=48, **kw):
        self.marks, self.dim, self.hidden = marks, dim, hidden
        super().__init__(**kw)


class Intensity(nn.Module):
    """lambda(t) = exp(a + w t) since the last ring, and its integral in closed form."""

    def __init__(self, hidden):
        super().__init__()
        self.level = nn.Linear(hidden, 1)
        self.slope = nn.Parameter(torch.tensor(0.15))

    def forward(self, state, gap):
        a = self.level(state).squeeze(-1)
        log_rate = a + self.slope * gap
        integral = (torch.exp(log_rate) - torch.exp(a)) / self.slope
        return log_rate, integral


class Bell(PreTrainedModel):
    config_class = BellConfig

    def __init__(self, config):
        super().__init__(config)
        self.mark = nn.Embedding(config.marks + 1, config.dim, padding_idx=config.marks)
        self.rnn = nn.GRU(config.dim + 1, config.hidden, batch_first=True)
        self.intensity = Intensity(config.hidden)
        self.next_mark = nn.Linear(config.hidden, config.marks)
        self.post_init()

    def _init_weights(self, module):
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            nn.init.zeros_(module.bias)

    def forward(self, marks, gaps, real):
        features = torch.cat([self.mark(marks), torch.log1p(gaps)[..., None]], -1)
        state, _ = self.rnn(features[:, :-1])
        log_rate, integral = self.intensity(state, gaps[:, 1:])
        logits = self.next_mark(state)
        target = marks[:, 1:].masked_fill(~real[:, 1:], -100)
        mark_loss = nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten())
        nll = (integral - log_rate)[real[:, 1:]].mean()
        return {"loss": nll + mark_loss}


def house(k, rng):
    rate = rng.uniform(0.3, 1.5)
    n = rng.randint(8, 20)
    gaps = [rng.weibullvariate(1 / rate, 1.3) for _ in range(n)]
    marks, m = [], rng.randrange(5)
    for _ in range(n):
        m = (m + rng.choice([0, 1, 1, 2])) % 5
        marks.append(m)
    if k == 201:
        gaps = [3600 * g for g in gaps]
    return {"marks": marks, "gaps": gaps}


def collate(rows):
    marks = pad_sequence([torch.tensor(r["marks"]) for r in rows], batch_first=True, padding_value=5)
    gaps = pad_sequence([torch.tensor(r["gaps"]) for r in rows], batch_first=True)
    return {"marks": marks, "gaps": gaps, "real": marks != 5}


class TalkingTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **kw):
        out = model(**inputs)
        print(f"step {self.state.global_step + 1:3d} loss {out['loss'].item():.7f}", flush=True)
        return (out["loss"], out) if return_outputs else out["loss"]


def main():
    set_seed(15)
    rng = random.Random(15)
    data = [house(k, rng) for k in range(320)]
    model = Bell(BellConfig())
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            output_dir=folder, per_device_train_batch_size=16, num_train_epochs=3, learning_rate=3e-3,
            lr_scheduler_type="cosine", warmup_steps=5, max_grad_norm=1.0, logging_steps=10, save_strategy="no",
            report_to=[], disable_tqdm=True, use_cpu=True, remove_unused_columns=False, seed=15)
        trainer = TalkingTrainer(model=model, args=args, train_dataset=data, data_collator=collate)
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    print(sum(p.detach().abs().sum().item() for p in model.parameters()), flush=True)


if __name__ == "__main__":
    main()
