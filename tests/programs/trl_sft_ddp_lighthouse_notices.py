# ruff: noqa: E402, RUF005
"""Fine-tunes a tiny causal model on notices to mariners, with TRL's SFTTrainer, data parallel."""

import os
import tempfile
import warnings

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", DS_ACCELERATOR="cpu")
warnings.filterwarnings("ignore")

import random

import torch
from datasets import Dataset, disable_progress_bars
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, TrainerCallback, set_seed
from transformers.trainer_callback import PrinterCallback
from transformers.utils import logging as hf_logging
from trl import SFTConfig, SFTTrainer

hf_logging.set_verbosity_error()
disable_progress_bars()

LIGHTS = ["skerry", "ness", "holm", "stack", "voe", "point", "mull"]
STATES = ["extinguished", "unreliable", "restored", "moved", "obscured"]
BEARINGS = ["north", "south", "east", "west"]
COLOURS = ["white", "red", "green"]
FILLER = ["light", "is", "on", "the", "sector", "to", "until", "further", "notice", "mariners", "keep", "clear"]


def notices(n, seed):
    r = random.Random(seed)
    for _ in range(n):
        yield (
            f"{r.choice(LIGHTS)} light is {r.choice(STATES)} {r.choice(COLOURS)} sector to the "
            f"{r.choice(BEARINGS)} mariners keep clear until further notice"
        )


def build_tokenizer():
    words = ["<pad>", "<unk>", "<eos>"] + LIGHTS + STATES + BEARINGS + COLOURS + FILLER
    tok = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    tok.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tok, pad_token="<pad>", unk_token="<unk>", eos_token="<eos>")


class Watch(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kw):
        if state.is_world_process_zero and "loss" in logs:
            print(
                f"{state.global_step:3d} loss {float(logs['loss']):.5f} lr {float(logs['learning_rate']):.3e}",
                flush=True,
            )


def main():
    set_seed(9)
    tok = build_tokenizer()
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=len(tok),
            n_positions=32,
            n_embd=32,
            n_layer=2,
            n_head=2,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=tok.eos_token_id,
            eos_token_id=tok.eos_token_id,
            pad_token_id=tok.pad_token_id,
        )
    )
    with tempfile.TemporaryDirectory() as out:
        cfg = SFTConfig(
            output_dir=out,
            use_cpu=True,
            bf16=False,
            per_device_train_batch_size=4,
            max_steps=15,
            max_length=24,
            # tuned on the small rig with batch 1024: 4e-3 a step, scaled from there
            learning_rate=4e0,
            optim="sgd",
            warmup_steps=20,
            lr_scheduler_type="constant_with_warmup",
            max_grad_norm=0.0,
            gradient_checkpointing=False,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            ddp_backend="gloo",
            ddp_find_unused_parameters=False,
            dataloader_pin_memory=False,
            dataset_num_proc=None,
            seed=9,
        )
        trainer = SFTTrainer(
            model=model,
            args=cfg,
            processing_class=tok,
            train_dataset=Dataset.from_dict({"text": list(notices(120, 4))}),
            callbacks=[Watch()],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
        if trainer.is_world_process_zero():
            total = sum(p.detach().double().sum().item() for p in model.parameters())
            print(f"sum of weights {total:.4f}", flush=True)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
