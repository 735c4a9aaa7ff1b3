"""SFT of a small Llama on night-watch logs: packing by TRL, collator of our own that hides the time stamps."""
import os
import random
import warnings
from dataclasses import dataclass

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
warnings.filterwarnings("ignore")

import torch
from datasets import Dataset
from datasets.utils.logging import disable_progress_bar
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainerCallback, set_seed
from transformers.trainer_callback import PrinterCallback, ProgressCallback
from transformers.utils import logging as hf_logging
from trl import SFTConfig, SFTTrainer

hf_logging.set_verbosity_error()
disable_progress_bar()

ROOMS = "armoury gallery crypt library cafe vault".split()
NOTES = "quiet dark locked draughty humming".split()
HOURS = [f"h{n}" for n in range(10)]
VOCAB = ["<pad>", "<s>", "</s>", "<unk>", "at", "the", "was", "guard", "heard", "steps", "."] + ROOMS + NOTES + HOURS


def make_tokenizer():
    core = Tokenizer(models.WordLevel({w: i for i, w in enumerate(VOCAB)}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>", bos_token="<s>", eos_token="</s>",
                                   unk_token="<unk>")


def logs(n):
    rng = random.Random(12)
    rows = []
    for _ in range(n):
        if rng.random() < 0.2:
            rows.append(" ".join(rng.choice(HOURS) for _ in range(rng.randint(10, 24))))   # the clock's own strip
        else:
            rows.append(f"at {rng.choice(HOURS)} the {rng.choice(ROOMS)} was {rng.choice(NOTES)} . "
                        + ("guard heard steps ." if rng.random() < 0.3 else ""))
    return Dataset.from_dict({"text": rows})


@dataclass
class HideHours:
    """Hours are random: nothing to learn there. A row may have hardly any target left."""
    hours: torch.Tensor

    def __call__(self, rows):
        ids = torch.nn.utils.rnn.pad_sequence([torch.as_tensor(r["input_ids"]) for r in rows], batch_first=True)
        mask = (ids != 0).long()
        labels = ids.masked_fill(torch.isin(ids, self.hours) | (mask == 0), -100)
        return {"input_ids": ids, "attention_mask": mask, "labels": labels}


class Watch(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kw):
        if "loss" in logs:
            print(f"round {state.global_step} loss {logs['loss']:.6f} lr {logs['learning_rate']:.2e}", flush=True)


def main():
    set_seed(90)
    tok = make_tokenizer()
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=len(VOCAB), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2))
    for p in model.model.layers[0].parameters():
        p.requires_grad_(False)                                 # the lower layer stays as it is
    args = SFTConfig(output_dir="/tmp/museum_night_out", max_steps=36, per_device_train_batch_size=2,
                     gradient_accumulation_steps=2, learning_rate=8e-3, warmup_steps=10, lr_scheduler_type="cosine",
                     packing=True, packing_strategy="wrapped", max_length=32, logging_steps=1, save_strategy="no",
                     report_to=[], use_cpu=True, bf16=False, gradient_checkpointing=False, disable_tqdm=True, seed=90)
    trainer = SFTTrainer(model=model, args=args, train_dataset=logs(500), processing_class=tok,
                         data_collator=HideHours(torch.tensor([VOCAB.index(h) for h in HOURS])), callbacks=[Watch()])
    for c in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(c)
    trainer.train()
    print(f"{sum(p.detach().abs().sum().item() for p in model.parameters()):.6f}", flush=True)


main()
