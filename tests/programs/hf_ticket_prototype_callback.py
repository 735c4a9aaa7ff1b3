import os
import tempfile

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import PreTrainedConfig, PreTrainedModel, PrinterCallback, Trainer, TrainerCallback, TrainingArguments

QUEUES = ["billing", "network", "hardware", "accounts", "legal"]
WORDS = 60


class Tickets(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        share = torch.tensor([0.32, 0.28, 0.2, 0.16, 0.04])
        self.label = torch.multinomial(share, n, replacement=True, generator=g)
        topic = torch.randint(0, 11, (n, 14), generator=g) + 11 * self.label[:, None]
        noise = torch.randint(0, WORDS, (n, 14), generator=g)
        self.ids = torch.where(torch.rand(n, 14, generator=g) < 0.35, topic, noise)

    def __len__(self):
        return len(self.label)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "labels": self.label[i]}


class TriageModel(PreTrainedModel):
    config_class = PreTrainedConfig

    def __init__(self, config, width=24):
        super().__init__(config)
        self.words = nn.EmbeddingBag(WORDS, width, mode="mean")
        self.mix = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))
        self.head = nn.Linear(width, len(QUEUES))

    def encode(self, input_ids):
        return self.mix(self.words(input_ids))

    def forward(self, input_ids, labels=None):
        return {"logits": self.head(self.encode(input_ids))}


class PrototypeCallback(TrainerCallback):
    """Every few steps the agents review a window of tickets; rows of the head lean towards the reviewed centroids."""

    def __init__(self, reviewed, every=5, window=40):
        self.reviewed, self.every, self.window, self.at = reviewed, every, window, 0

    def on_step_end(self, args, state, control, model=None, **kw):
        if state.global_step % self.every:
            return
        s = slice(self.at, self.at + self.window)
        self.at += self.window
        with torch.no_grad():
            feats, queue = model.encode(self.reviewed.ids[s]), self.reviewed.label[s]
            for q in range(len(QUEUES)):
                centroid = feats[queue == q].mean(dim=0)
                model.head.weight[q] = 0.9 * model.head.weight[q] + 0.1 * centroid


class Reporter(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kw):
        if "loss" in logs:
            print(f"step {state.global_step} loss {float(logs['loss']):.4f}")


args = TrainingArguments(
    output_dir=tempfile.mkdtemp(), max_steps=32, per_device_train_batch_size=16, learning_rate=5e-3,
    label_smoothing_factor=0.1, logging_steps=1, logging_nan_inf_filter=False, save_strategy="no",
    report_to="none", disable_tqdm=True, use_cpu=True, seed=3, lr_scheduler_type="linear",
)
torch.manual_seed(3)
model = TriageModel(PreTrainedConfig())
trainer = Trainer(model=model, args=args, train_dataset=Tickets(512, 1),
                  callbacks=[PrototypeCallback(Tickets(400, 29)), Reporter()])
trainer.remove_callback(PrinterCallback)
trainer.train()
print("sum of squares of the weights", sum(p.detach().pow(2).sum().item() for p in model.parameters()))
