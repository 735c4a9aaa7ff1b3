"""Trains the Ludwig example by its Python API for a few steps; prints what it left behind, as one line of JSON.

usage: ludwig_program.py CONFIG DATA OUTPUT [watched]
"""

import hashlib
import json
import sys
from pathlib import Path

import torch
import yaml
from ludwig.api import LudwigModel
from ludwig.callbacks import Callback

config, data, output, *watched = sys.argv[1:]


class Seen(Callback):
    """The learning rates of the steps, and the optimizer."""

    def __init__(self):
        self.rates = []

    def on_batch_end(self, trainer, progress_tracker, save_path, sync_step=True):
        self.rates.append(progress_tracker.learning_rate)
        self.optimizer = trainer.optimizer


seen = Seen()
callbacks = [seen]
if watched:
    from finitune.integrations import LudwigCallback

    callbacks.append(LudwigCallback(run_dir=Path(output) / "run"))
model = LudwigModel(yaml.safe_load(Path(config).read_text()), callbacks=callbacks)
model.train(dataset=data, output_directory=output, skip_save_model=True, skip_save_progress=True)
held = hashlib.sha256()
for name, p in model.model.named_parameters():
    if p.requires_grad:
        held.update(name.encode() + p.detach().numpy().tobytes())
        for entry, value in sorted(seen.optimizer.state.get(p, {}).items()):
            held.update(entry.encode() + torch.as_tensor(value).numpy().tobytes())
held.update(torch.get_rng_state().numpy().tobytes())
print("LEFT " + json.dumps({"sha256": held.hexdigest(), "rates": seen.rates}))
