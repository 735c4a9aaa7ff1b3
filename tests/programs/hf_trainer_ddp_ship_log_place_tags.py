"""Place-name tagging in transcribed ship logs, BERT-style, HF Trainer under torchrun.

Transcribers' certainty (0 to 3) weighs each token; uncertain tokens count less, words that nobody
could read count nothing.
"""
import os
import sys
import tempfile
import warnings

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
warnings.filterwarnings("ignore")

import torch
import torch.nn.functional as F
from torch.utils.data import Dataset
from transformers import (BertConfig, BertForTokenClassification, PrinterCallback, Trainer, TrainerCallback,
                          TrainingArguments, set_seed)
from transformers.utils import logging as hf_logging

hf_logging.set_verbosity_error()
hf_logging.disable_progress_bar()

SEQ, VOCAB, TAGS = 16, 120, 3          # tags: O, B-PLACE, I-PLACE
LOST_PAGES = range(92, 96)             # water damage: "Lat. [illegible]" for four entries on end


class LogEntries(Dataset):
    def __init__(self, n=224, seed=5):
        g = torch.Generator().manual_seed(seed)
        self.rows = []
        for entry in range(n):
            ids = torch.randint(4, VOCAB, (SEQ,), generator=g)
            tags = (ids % 7 == 0).long()
            tags[1:] += 2 * ((tags[:-1] == 1) & (tags[1:] == 0)).long()
            certainty = torch.randint(0, 4, (SEQ,), generator=g)
            if entry in LOST_PAGES:
                certainty[:] = 0
                ids[3:] = 3            # [illegible]
            self.rows.append({"input_ids": ids, "attention_mask": torch.ones(SEQ, dtype=torch.long),
                              "labels": tags, "certainty": certainty})

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


class CertaintyTrainer(Trainer):
    def _get_train_sampler(self, *args, **kwargs):
        # the logs are read in the order of the voyage
        return torch.utils.data.SequentialSampler(self.train_dataset)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        weight = inputs.pop("certainty").float() / 3.0
        outputs = model(**inputs)
        token_loss = F.cross_entropy(outputs.logits.flatten(0, 1), labels.flatten(), reduction="none")
        weight = weight.flatten()
        loss = (weight * token_loss).sum() / weight.sum()
        return (loss, outputs) if return_outputs else loss


class Logbook(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if state.is_world_process_zero and "loss" in logs:
            print(f"step {state.global_step:>2}  loss {float(logs['loss']):.6f}  lr {float(logs['learning_rate']):.2e}",
                  flush=True)


def build_model():
    cfg = BertConfig(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
                     intermediate_size=64, max_position_embeddings=SEQ, num_labels=TAGS,
                     hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    return BertForTokenClassification(cfg)


def main():
    set_seed(17)
    model = build_model()
    with tempfile.TemporaryDirectory() as out:
        args = TrainingArguments(
            output_dir=out, use_cpu=True, per_device_train_batch_size=4, gradient_accumulation_steps=2,
            num_train_epochs=1, learning_rate=4e-3, lr_scheduler_type="cosine", warmup_steps=2, weight_decay=0.01,
            logging_steps=1, save_strategy="no", report_to=[], disable_tqdm=True, remove_unused_columns=False,
            ddp_backend="gloo", ddp_find_unused_parameters=False, dataloader_num_workers=0,
            dataloader_pin_memory=False, seed=17)
        trainer = CertaintyTrainer(model=model, args=args, train_dataset=LogEntries(), callbacks=[Logbook()])
        trainer.remove_callback(PrinterCallback)
        trainer.train()
        if trainer.is_world_process_zero():
            total = sum(p.detach().double().sum().item() for p in model.parameters())
            print(f"checksum {total:.5f}", flush=True)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
