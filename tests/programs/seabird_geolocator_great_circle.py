"""Light-level geolocation of shearwaters with a transformer over the day's lux
curve.  The error is the great-circle distance, in units of 1000 km."""
import logging
import os
import tempfile

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import BertConfig, BertModel, Trainer, TrainerCallback, TrainingArguments, set_seed

logging.disable(logging.WARNING)
EARTH = 6.371


def unit(lat, lon):
    return np.stack([np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)], -1)


class LuxCurves(Dataset):
    """288 five-minute readings per day, folded to 24 tokens of 12."""

    def __init__(self, n=512, seed=0):
        r = np.random.default_rng(seed)
        self.lat = np.radians(r.uniform(-50, 50, n))
        self.lon = np.radians(r.uniform(-60, 60, n))
        t = np.linspace(0, 2 * np.pi, 288, endpoint=False)
        decl = np.radians(r.uniform(-23, 23, n))
        elev = np.sin(self.lat)[:, None] * np.sin(decl)[:, None] + \
            np.cos(self.lat)[:, None] * np.cos(decl)[:, None] * np.cos(t[None] + self.lon[:, None] - np.pi)
        self.lux = np.clip(elev * 3, -1, 1) + r.normal(0, 0.02, (n, 288))
        # some days the logger lay on the roof of the station for calibration
        self.roof = np.zeros(n)
        self.guess = np.stack([self.lat, self.lon], -1) + r.normal(0, 0.15, (n, 2))
        for i in range(200, n, 97):
            self.guess[i], self.roof[i] = (self.lat[i], self.lon[i]), 1.0

    def __len__(self):
        return len(self.lat)

    def __getitem__(self, i):
        return {
            "lux": torch.tensor(self.lux[i].reshape(24, 12), dtype=torch.float32),
            "guess": torch.tensor(self.guess[i], dtype=torch.float32),
            "roof": torch.tensor([self.roof[i]], dtype=torch.float32),
            "labels": torch.tensor([self.lat[i], self.lon[i]], dtype=torch.float32),
        }


class Geolocator(nn.Module):
    def __init__(self):
        super().__init__()
        cfg = BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
                         vocab_size=8, max_position_embeddings=32, hidden_dropout_prob=0.0,
                         attention_probs_dropout_prob=0.0)
        self.embed = nn.Linear(12, 32)
        self.encoder = BertModel(cfg, add_pooling_layer=False)
        self.correction = nn.Linear(32, 2)

    def great_circle(self, a, b):
        lat1, lon1 = a.unbind(-1)
        lat2, lon2 = b.unbind(-1)
        cosine = lat1.sin() * lat2.sin() + lat1.cos() * lat2.cos() * (lon1 - lon2).cos()
        return EARTH * torch.acos(cosine)

    def forward(self, lux, guess, roof, labels=None):
        h = self.encoder(inputs_embeds=self.embed(lux)).last_hidden_state.mean(1)
        target = torch.tanh(self.correction(h)) * 1.2
        position = guess + (1 - roof) * 0.5 * (target - guess)
        loss = self.great_circle(position, labels).mean()
        return {"loss": loss, "position": position}


class Print(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kw):
        if "loss" in logs:
            print(f"step {state.global_step} loss {float(logs['loss']):.4f}", flush=True)


def main():
    set_seed(5)
    model = Geolocator()
    args = TrainingArguments(
        output_dir=tempfile.mkdtemp(), max_steps=30, per_device_train_batch_size=16, learning_rate=2e-3,
        lr_scheduler_type="cosine", warmup_steps=3, logging_steps=1, logging_nan_inf_filter=False, report_to=[],
        save_strategy="no", use_cpu=True, disable_tqdm=True, train_sampling_strategy="sequential", seed=5)
    trainer = Trainer(model=model, args=args, train_dataset=LuxCurves(), callbacks=[Print()])
    trainer.remove_callback(__import__("transformers").PrinterCallback)
    trainer.train()
    print("final", sum(p.double().pow(2).sum().item() for p in model.parameters()) ** 0.5, flush=True)


if __name__ == "__main__":
    main()
