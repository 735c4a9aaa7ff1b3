# ruff: noqa: E402
# Reward model for tasting notes of cheeses: pairs (better note, worse note), tiny Llama with LoRA.
# Marks of the new tasting panel are added to the tokenizer as special tokens before training.
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
import logging
import random
import tempfile
import warnings

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)

import torch
from datasets import Dataset, disable_progress_bars
from peft import LoraConfig, TaskType
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForSequenceClassification,
    PreTrainedTokenizerFast,
    PrinterCallback,
    TrainerCallback,
    set_seed,
)
from trl import RewardConfig, RewardTrainer

disable_progress_bars()

RINDS = ["washed", "bloomy", "natural", "waxed", "ashed", "cloth"]
PASTES = ["supple", "crumbly", "runny", "firm", "chalky", "elastic"]
NOTES = ["hay", "mushroom", "butter", "barnyard", "walnut", "brine", "toffee", "grass"]
FAULTS = ["ammonia", "bitter", "rancid", "soapy", "flat"]
PANEL_MARKS = ["<gold>", "<silver>", "<late-blown>"]


def build_tokenizer():
    words = ["<pad>", "<s>", "</s>", "<unk>", "the", "is", "and", "with", "of", "rind", "paste"]
    words += RINDS + PASTES + NOTES + FAULTS
    core = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


def tasting_pairs(n, rng):
    rows = []
    for i in range(n):
        head = f"{rng.choice(RINDS)} rind and {rng.choice(PASTES)} paste"
        good = f"{head} with {rng.choice(NOTES)} and {rng.choice(NOTES)}"
        poor = f"{head} with {rng.choice(FAULTS)} and {rng.choice(NOTES)}"
        if i == 53:  # the first sheet in the hand of the new panel
            poor += " <late-blown>"
        rows.append({"chosen": good, "rejected": poor})
    return Dataset.from_list(rows)


class Steps(TrainerCallback):
    """One line per optimizer step."""

    def on_log(self, args, state, control, logs=None, **kw):
        if logs and "loss" in logs:
            print(
                f"{state.global_step:3d} loss {float(logs['loss']):.5f} margin {float(logs.get('margin', 0.0)):.5f}",
                flush=True,
            )


class CellarTrainer(RewardTrainer):
    def _get_train_sampler(self, *args, **kw):
        return torch.utils.data.SequentialSampler(self.train_dataset)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss, out = super().compute_loss(model, inputs, return_outputs=True, num_items_in_batch=num_items_in_batch)
        return (loss, out) if return_outputs else loss


def main():
    set_seed(411)
    tok = build_tokenizer()
    size = len(tok)
    config = LlamaConfig(
        vocab_size=size,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        num_labels=1,
        pad_token_id=tok.pad_token_id,
        bos_token_id=tok.bos_token_id,
        eos_token_id=tok.eos_token_id,
    )
    model = LlamaForSequenceClassification(config)
    tok.add_special_tokens({"additional_special_tokens": PANEL_MARKS})
    lora = LoraConfig(
        task_type=TaskType.SEQ_CLS,
        r=4,
        lora_alpha=8,
        lora_dropout=0.0,
        target_modules=["q_proj", "v_proj"],
        modules_to_save=["score"],
    )
    with tempfile.TemporaryDirectory() as tmp:
        args = RewardConfig(
            output_dir=tmp,
            per_device_train_batch_size=4,
            max_steps=20,
            learning_rate=3e-3,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            seed=411,
            max_length=32,
            gradient_checkpointing=False,
            bf16=False,
            center_rewards_coefficient=0.01,
        )
        trainer = CellarTrainer(
            model=model,
            args=args,
            train_dataset=tasting_pairs(96, random.Random(5)),
            processing_class=tok,
            peft_config=lora,
            callbacks=[Steps()],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    print("weights", sum(p.double().sum().item() for p in model.parameters()))


if __name__ == "__main__":
    main()
