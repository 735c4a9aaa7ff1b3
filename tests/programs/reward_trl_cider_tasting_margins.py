"""Reward model on pairs of tasting notes for ciders. Judges gave stars; the pair's margin says how much
clearer the better note was."""
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import tempfile

import numpy as np
import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (LlamaConfig, LlamaForSequenceClassification, PreTrainedTokenizerFast, TrainerCallback,
                          set_seed)
from trl import RewardConfig, RewardTrainer
import transformers, datasets

transformers.logging.set_verbosity_error()
datasets.disable_progress_bars()

GOOD = "bittersweet russet tannin leathery orchard honey long dry keeved balanced".split()
BAD = "vinegar mousy flat sulphur thin cloying rubber musty short sour".split()
FILL = "with a hint of and some nose palate finish colour in the glass".split()
STEPS, BATCH = 36, 8


def make_tokenizer():
    words = ["<pad>", "<unk>", "</s>"] + sorted(set(GOOD + BAD + FILL))
    tok = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    tok.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tok, pad_token="<pad>", unk_token="<unk>", eos_token="</s>")


def note(rng, stars):
    words = []
    for _ in range(int(rng.integers(5, 12))):
        pool = FILL if rng.random() < 0.4 else (GOOD if rng.random() < stars / 5 else BAD)
        words.append(pool[int(rng.integers(len(pool)))])
    return " ".join(words)


def read_pairs(n, rng):
    """Stars are means over the judges who tasted; ballots come as half stars from 0.5 to 5."""
    chosen, rejected, hi, lo = [], [], [], []
    for i in range(n):
        ballots = rng.integers(1, 11, size=(2, 3)) / 2.0
        if i % 97 == 96:
            ballots[1] = 0.0            # "disqualified": faulty bottle, all judges leave the line at nought
        a, b = sorted(ballots.mean(axis=1), reverse=True)
        hi.append(a)
        lo.append(b)
        chosen.append(note(rng, a))
        rejected.append(note(rng, b))
    hi, lo = np.array(hi), np.array(lo)
    with np.errstate(divide="ignore"):
        margin = np.log(hi / lo)        # equally good: 0, twice the stars: 0.69
    return Dataset.from_dict({"chosen": chosen, "rejected": rejected, "margin": margin.astype("float32")})


class Lines(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kw):
        if "loss" in logs:
            print(f"step {state.global_step} loss {float(logs['loss']):.4f} "
                  f"accuracy {float(logs.get('accuracy', float('nan'))):.3f}", flush=True)


def main():
    set_seed(44)
    rng = np.random.default_rng(2020)
    tok = make_tokenizer()
    config = LlamaConfig(vocab_size=len(tok), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64, num_labels=1,
                         pad_token_id=tok.pad_token_id, eos_token_id=tok.eos_token_id)
    model = LlamaForSequenceClassification(config)
    pairs = read_pairs(STEPS * BATCH, rng)
    with tempfile.TemporaryDirectory() as out:
        args = RewardConfig(output_dir=out, per_device_train_batch_size=BATCH, max_steps=STEPS, learning_rate=2e-3,
                            lr_scheduler_type="constant", logging_steps=1,
                            save_strategy="no", report_to=[], use_cpu=True, bf16=False, disable_tqdm=True,
                            max_length=48, gradient_checkpointing=False, seed=44)
        trainer = RewardTrainer(model=model, args=args, train_dataset=pairs, processing_class=tok,
                                callbacks=[Lines()])
        from transformers.trainer_callback import PrinterCallback
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    print(f"{sum(p.detach().abs().sum().item() for p in model.parameters()):.4f}", flush=True)


if __name__ == "__main__":
    main()
