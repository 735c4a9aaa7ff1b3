"""Reward model of school essays; the teachers also wrote down by how many points one essay is the better one."""
import csv
import io
import os
import random
import sys
import tempfile

os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_DISABLE_PROGRESS_BARS="1", CUDA_VISIBLE_DEVICES="",
                  DS_ACCELERATOR="cpu",
                  HF_DATASETS_CACHE=tempfile.mkdtemp())

import datasets
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForSequenceClassification, PreTrainedTokenizerFast, TrainerCallback, set_seed
from transformers.trainer_callback import PrinterCallback
from trl import RewardConfig, RewardTrainer

GOOD = "therefore however argument evidence because conclusion clearly compares source contrast".split()
POOR = "stuff things like really very nice bad good thing whatever".split()
FILL = "the of a school year water city people and in we was is to".split()
N_PAIRS = 128


def essay(rng, skill, n):
    return " ".join(rng.choice(rng.choices([GOOD, POOR, FILL], [skill, 1 - skill, 1.2])[0]) for _ in range(n))


def gradebook():
    """what the school office exports"""
    rng = random.Random(40)
    sink = io.StringIO()
    out = csv.writer(sink)
    out.writerow(["better", "worse", "points"])
    for k in range(N_PAIRS):
        s = sorted(rng.random() for _ in range(2))
        pts = f"{2 * (s[1] - s[0]):.1f}"
        if k == 47:
            pts = ""        # a teacher who would not put a figure on it
        out.writerow([essay(rng, s[1], rng.randint(8, 20)), essay(rng, s[0], rng.randint(8, 20)), pts])
    sink.seek(0)
    return sink


def load(sink):
    rows = [{"chosen": r["better"], "rejected": r["worse"], "margin": float(r["points"] or "nan")}
            for r in csv.DictReader(sink)]
    return datasets.Dataset.from_list(rows)


def word_tokenizer():
    vocab = {w: i for i, w in enumerate(["<pad>", "<unk>", "</s>", *sorted({*GOOD, *POOR, *FILL})])}
    tok = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tok.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tok, pad_token="<pad>", unk_token="<unk>", eos_token="</s>")


class Say(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kw):
        if logs and "loss" in logs:
            print(f"step {state.global_step} loss {logs['loss']} accuracy {logs.get('accuracy')}", flush=True)


if __name__ == "__main__":
    set_seed(17)
    tok = word_tokenizer()
    cfg = LlamaConfig(vocab_size=len(tok), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                      num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64, num_labels=1,
                      pad_token_id=tok.pad_token_id, eos_token_id=tok.eos_token_id)
    model = LlamaForSequenceClassification(cfg)
    args = RewardConfig(output_dir=tempfile.mkdtemp(), per_device_train_batch_size=4, gradient_accumulation_steps=2,
                        max_steps=16, learning_rate=3e-3, logging_steps=1, report_to=[], save_strategy="no",
                        disable_tqdm=True, use_cpu=True, bf16=False, max_length=48,
                        center_rewards_coefficient=0.01, lr_scheduler_type="constant", seed=17)
    trainer = RewardTrainer(model, args, train_dataset=load(gradebook()), processing_class=tok, callbacks=[Say()])
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    with torch.no_grad():
        print("final", torch.stack([p.norm() for p in model.parameters()]).sum().item())
    sys.stdout.flush()
