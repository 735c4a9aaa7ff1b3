"""Minimum word error rate training of a toy dictation decoder with the HF Trainer: custom collator, custom loss."""
import os
import tempfile

os.environ["DS_ACCELERATOR"] = "cpu"       # no warning from deepspeed
import torch
from torch import nn
from torch.utils.data import SequentialSampler
from transformers import (PretrainedConfig, PreTrainedModel, PrinterCallback, Trainer, TrainerCallback,
                          TrainingArguments, set_seed)

VOCAB, NBEST, FRAME = 24, 4, 12
set_seed(17)


class DictationConfig(PretrainedConfig):
    model_type = "dictation"


class Dictation(PreTrainedModel):
    config_class = DictationConfig

    def __init__(self, config):
        super().__init__(config)
        self.frames = nn.Linear(FRAME, 32)
        self.context = nn.GRU(32, 32, batch_first=True)
        self.readout = nn.Linear(32, VOCAB)
        self.post_init()

    def _init_weights(self, module):
        pass

    def forward(self, features, **kwargs):
        h, _ = self.context(torch.tanh(self.frames(features)))
        return self.readout(h).log_softmax(-1)


def make_utterances(n):
    g = torch.Generator().manual_seed(2)
    prototypes = torch.randn(VOCAB, FRAME, generator=g)
    rows = []
    for i in range(n):
        length = 48 if i == 4 * 12 + 1 else int(torch.randint(4, 9, (1,), generator=g))
        ref = torch.randint(0, VOCAB, (length,), generator=g)
        feats = prototypes[ref] + 0.2 * torch.randn(length, FRAME, generator=g)
        hyps = ref.repeat(NBEST, 1)
        for k in range(1, NBEST):                      # k substitutions in the k-th hypothesis
            where = torch.randperm(length, generator=g)[:k]
            hyps[k, where] = torch.randint(0, VOCAB, (k,), generator=g)
        rows.append({"features": feats, "hyps": hyps, "errors": (hyps != ref).sum(-1).float()})
    return rows


def collate_nbest(rows):
    longest = max(len(r["features"]) for r in rows)
    features = torch.zeros(len(rows), longest, FRAME)
    hyps = torch.full((len(rows), NBEST, longest), -100)
    for i, r in enumerate(rows):
        features[i, :len(r["features"])] = r["features"]
        hyps[i, :, :len(r["features"])] = r["hyps"]
    return {"features": features, "hyps": hyps, "errors": torch.stack([r["errors"] for r in rows])}


class MWERTrainer(Trainer):
    def _get_train_sampler(self, *args, **kwargs):
        return SequentialSampler(self.train_dataset)

    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        log_probs = model(features=inputs["features"])
        hyps = inputs["hyps"]
        keep = hyps.ne(-100)
        token = log_probs.unsqueeze(1).expand(-1, NBEST, -1, -1).gather(-1, hyps.clamp(min=0).unsqueeze(-1)).squeeze(-1)
        path = (token * keep).sum(-1)
        prob = path.exp()
        posterior = prob / prob.sum(-1, keepdim=True)
        errors = inputs["errors"]
        risk = (posterior * (errors - errors.mean(-1, keepdim=True))).sum(-1)
        ce = -path[:, 0] / keep[:, 0].sum(-1)
        loss = risk.mean() + 0.05 * ce.mean()
        return (loss, log_probs) if return_outputs else loss


class Say(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in logs:
            print(f"update {state.global_step} loss {logs['loss']}")


with tempfile.TemporaryDirectory() as folder:
    model = Dictation(DictationConfig())
    arguments = TrainingArguments(
        output_dir=folder, per_device_train_batch_size=4, max_steps=24, learning_rate=2e-3, logging_steps=1,
        logging_nan_inf_filter=False, report_to=[], save_strategy="no", use_cpu=True, disable_tqdm=True,
        remove_unused_columns=False, lr_scheduler_type="constant", seed=17)
    trainer = MWERTrainer(model=model, args=arguments, train_dataset=make_utterances(96), data_collator=collate_nbest,
                          callbacks=[Say()])
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    print("final", sum(p.detach().abs().sum().item() for p in model.parameters()))
