"""Trains a tiny Llama with TRL after `import unsloth`, as its users do; run by test_unsloth.py and by hand.

    python unsloth_program.py OUT [--fast] [--plain] [--callback before|after] [--empty STEP] [--accumulate N]

Writes what the trainer logged, a digest of the weights after each step, and what of Unsloth took part. With `--fast`
(needs CUDA) the model is that of FastLanguageModel. Without, it is that of transformers: Unsloth, told that there is no
device, leaves out what it does to the trainers, so that is done here as its own import and its own loading of a model
do it; Triton's kernels run in its interpreter.
"""

from __future__ import annotations

# ruff: noqa: E402 - Unsloth comes before what it patches.
import argparse
import hashlib
import json
import os
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("out", type=Path)
parser.add_argument("--fast", action="store_true", help="FastLanguageModel and its adapters (needs CUDA)")
parser.add_argument("--plain", action="store_true", help="Unsloth is not imported")
parser.add_argument("--callback", choices=("before", "after"), help="add finitune's callback, imported so")
parser.add_argument("--empty", type=int, default=0, help="the batch of this step has no labels")
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "float16"))
given = parser.parse_args()

if not given.fast:
    os.environ["TRITON_INTERPRET"] = "1"
    os.environ["UNSLOTH_ALLOW_CPU"] = "1"
os.environ["UNSLOTH_COMPILE_LOCATION"] = str(given.out / "unsloth_compiled_cache")
given.out.mkdir(parents=True, exist_ok=True)

if given.callback == "before":
    from finitune.integrations import TrainerCallback
if not given.plain:
    import unsloth
if not given.plain and not given.fast:
    from unsloth.context_parallel import patch_sft_trainer
    from unsloth.models._utils import patch_gradient_accumulation_fix
    from unsloth.models.llama import FastLlamaModel
    from unsloth.models.rl import PatchFastRL
    from unsloth.trainer import _patch_trl_trainer

    os.environ["UNSLOTH_ALLOW_CPU"] = "0"
    PatchFastRL(FastLanguageModel=FastLlamaModel)
    _patch_trl_trainer()
    patch_sft_trainer()
if given.callback == "after":
    from finitune.integrations import TrainerCallback

import torch
from datasets import Dataset
from torch.utils.data import SequentialSampler
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers import TrainerCallback as Callback
from trl import SFTConfig, SFTTrainer

if not given.plain and not given.fast:
    import transformers

    patch_gradient_accumulation_fix(transformers.Trainer)

STEPS, ROWS, LENGTH, WORDS = 5, 2, 12, 64


def words():
    """One token per word, w0 to w61."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {**{f"w{i}": i for i in range(WORDS - 2)}, "<pad>": WORDS - 2, "<eos>": WORDS - 1}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>", bos_token="<eos>", model_max_length=64
    )


def load():
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4,
        vocab_size=WORDS, max_position_embeddings=64, tie_word_embeddings=False,
        pad_token_id=WORDS - 2, eos_token_id=WORDS - 1, bos_token_id=WORDS - 1,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    if not given.fast:
        return model
    place = given.out / "model"
    model.save_pretrained(place)
    words().save_pretrained(place)
    fast = unsloth.FastLanguageModel
    model, _ = fast.from_pretrained(
        str(place), max_seq_length=64, dtype=getattr(torch, given.dtype), load_in_4bit=False, fix_tokenizer=False
    )
    return fast.get_peft_model(
        model, r=8, lora_alpha=16, lora_dropout=0, bias="none", random_state=3407,
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    )  # fmt: skip


def rows():
    generator = torch.Generator().manual_seed(1)
    out = []
    for step in range(1, STEPS + 1):
        for _ in range(ROWS * given.accumulate):
            start = int(torch.randint(0, 32, (1,), generator=generator))
            ids = [start + i for i in range(LENGTH)]
            labels = [-100] * LENGTH if step == given.empty else list(ids)
            out.append({"input_ids": ids, "labels": labels})
    return Dataset.from_list(out)


class InOrder(SFTTrainer):
    def _get_train_sampler(self, *_args, **_kwargs):
        return SequentialSampler(self.train_dataset)


def stacked(batch):
    batch = {key: torch.tensor([row[key] for row in batch]) for key in ("input_ids", "labels")}
    return {**batch, "attention_mask": torch.ones_like(batch["input_ids"])}


def digest(tensors):
    sha = hashlib.sha256()
    for tensor in tensors:
        sha.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()[:16]


class Diary(Callback):
    def __init__(self):
        self.steps, self.shown = [], []

    def on_step_end(self, _args, state, _control, model=None, optimizer=None, **_):
        state_of = [t for own in optimizer.state.values() for t in own.values() if isinstance(t, torch.Tensor)]
        weights = list(model.parameters())
        self.steps.append({
            "step": state.global_step, "weights": digest(weights), "state": digest(state_of),
            "sound": all(bool(torch.isfinite(t).all()) for t in [*weights, *state_of]),
            "random": digest([torch.get_rng_state()]),
        })  # fmt: skip

    def on_log(self, _args, state, _control, logs=None, **_):
        if "loss" in logs:
            self.shown.append({"step": state.global_step, "loss": logs["loss"], "grad_norm": logs.get("grad_norm")})


def main():
    torch.set_num_threads(1)
    args = SFTConfig(
        output_dir=str(given.out / "out"), max_steps=STEPS, per_device_train_batch_size=ROWS, logging_steps=1,
        gradient_accumulation_steps=given.accumulate, learning_rate=1e-2, lr_scheduler_type="constant",
        report_to="none", save_strategy="no", use_cpu=not given.fast, disable_tqdm=True,
        bf16=given.dtype == "bfloat16", fp16=given.dtype == "float16", max_length=None,
        dataset_kwargs={"skip_prepare_dataset": True},
    )  # fmt: skip
    trainer = InOrder(model=load(), args=args, train_dataset=rows(), data_collator=stacked, processing_class=words())
    diary = Diary()
    trainer.add_callback(diary)
    if given.callback:
        trainer.add_callback(TrainerCallback(run_dir=given.out / "run"))
    torch.manual_seed(0)
    trainer.train()
    kinds = [kind.__name__ for kind in type(trainer).__mro__]
    callbacks = [type(callback).__mro__[0].__module__ for callback in trainer.callback_handler.callbacks]
    result = {
        "steps": diary.steps, "shown": diary.shown, "trainer": kinds,
        "callbacks": sum("finitune" in module for module in callbacks),
        "training_step": trainer.training_step.__func__.__module__ + "." + trainer.training_step.__func__.__qualname__,
        "model": type(trainer.model).__name__,
    }  # fmt: skip
    (given.out / "result.json").write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
