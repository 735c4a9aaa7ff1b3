"""Which fault does the diesel generator set have?  Audio classification with the HF Trainer."""
import os
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch
import torch.nn as nn
from torch.utils.data import Dataset
from transformers import (PretrainedConfig, PreTrainedModel, PrinterCallback, Trainer,
                          TrainerCallback, TrainingArguments, set_seed)
from transformers.modeling_outputs import SequenceClassifierOutput

RATE, SECONDS = 1024, 1
CLASSES = ["healthy", "injector", "bearing", "misfire"]
set_seed(5)


class GensetConfig(PretrainedConfig):
    model_type = "genset-noise"

    def __init__(self, channels=24, hidden=32, num_labels=4, **kw):
        self.channels, self.hidden = channels, hidden
        super().__init__(num_labels=num_labels, **kw)


class StatPooling(nn.Module):
    """mean and deviation over time, as for x-vectors"""

    def forward(self, x):
        mean = x.mean(-1)
        deviation = x.var(-1).sqrt()
        return torch.cat([mean, deviation], -1)


class GensetClassifier(PreTrainedModel):
    config_class = GensetConfig

    def __init__(self, config):
        super().__init__(config)
        self.filters = nn.Conv1d(1, config.channels, 64, stride=16)
        self.act = nn.GELU()
        self.pool = StatPooling()
        self.head = nn.Sequential(nn.Linear(2 * config.channels, config.hidden), nn.ReLU(),
                                  nn.Linear(config.hidden, config.num_labels))
        self.post_init()

    def _init_weights(self, module):
        """PyTorch's own initialisation is fine for this little net"""

    def forward(self, input_values, labels=None):
        h = self.act(self.filters(input_values.unsqueeze(1)))
        logits = self.head(self.pool(h))
        loss = nn.functional.cross_entropy(logits, labels) if labels is not None else None
        return SequenceClassifierOutput(loss=loss, logits=logits)


class Recordings(Dataset):
    """one second each; the recorder gates what is below its threshold to digital zero"""

    GATE = 0.02

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        t = torch.arange(RATE * SECONDS) / RATE
        self.items = []
        for i in range(n):
            y = int(torch.randint(0, 4, (), generator=g))
            load = 0.4 + 0.6 * torch.rand((), generator=g)
            if i == 147:                       # mains were back: the set had been shut down
                load = load * 0.01
            f = 25.0 + torch.rand((), generator=g)
            wave = torch.sin(2 * torch.pi * f * t) + 0.4 * torch.sin(2 * torch.pi * (2 + y) * f * t)
            wave = load * (wave + 0.2 * torch.randn(t.shape, generator=g)) * 0.8
            if wave.abs().max() < self.GATE:
                wave = torch.zeros_like(wave)
            self.items.append({"input_values": wave, "labels": torch.tensor(y)})

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


class LineLog(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kw):
        if "loss" in logs:
            print(f"step {state.global_step:3d} loss {float(logs['loss']):.6f}", flush=True)


def main():
    model = GensetClassifier(GensetConfig())
    with tempfile.TemporaryDirectory() as out:
        args = TrainingArguments(output_dir=out, per_device_train_batch_size=8, num_train_epochs=1,
                                 learning_rate=1e-2, logging_steps=1, save_strategy="no", seed=5,
                                 report_to=[], disable_tqdm=True, use_cpu=True, warmup_steps=4,
                                 lr_scheduler_type="cosine", dataloader_num_workers=0)
        trainer = Trainer(model=model, args=args, train_dataset=Recordings(240, 8), callbacks=[LineLog()])
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    print(f"{sum(p.detach().abs().sum().item() for p in model.parameters()):.6f}", flush=True)


if __name__ == "__main__":
    main()
