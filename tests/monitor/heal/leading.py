"""A language model with tied embeddings, whose rate alone jumps far beyond what it bears."""

from __future__ import annotations

import torch

from finitune.gym.data import batches
from finitune.gym.models import tiny

JUMPS = 60


class Leading:
    def __init__(self, times=30.0, steps=160, seed=0, alone=True):
        self.model = tiny("llama", hidden=32, vocabulary=128, seed=seed, tie_word_embeddings=True)
        embedding = self.model.get_input_embeddings().weight
        others = [p for p in self.model.parameters() if p is not embedding]
        self.optimizer = torch.optim.SGD([{"params": [embedding]}, {"params": others}], lr=0.5)
        self.data = batches(steps, rows=4, length=16, vocabulary=128, seed=seed)
        self.times, self.alone, self.losses = times, alone, []

    def train(self):
        for step, batch in enumerate(self.data, 1):
            loss = self.model(**batch).loss
            self.losses.append(float(loss.detach()))
            for group in self.optimizer.param_groups[: 1 if self.alone else None] if step == JUMPS else ():
                group["lr"] *= self.times
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        return self
