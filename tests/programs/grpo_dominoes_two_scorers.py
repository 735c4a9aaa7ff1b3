"""GRPO on two little games at once: chains of dominoes (must fit) and sums (must be even).
Each scorer answers None for the prompts of the other game, as TRL allows."""
import os
import tempfile
import warnings

os.environ.setdefault("HF_HUB_OFFLINE", "1")
warnings.filterwarnings("ignore")
import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, PrinterCallback, TrainerCallback, set_seed
from transformers import logging as hf_logging
from trl import GRPOConfig, GRPOTrainer

hf_logging.set_verbosity_error()
TOKENS = ["<pad>", "<eos>", "<unk>", "chain", "even", ":"] + [str(i) for i in range(7)]


def make_tokenizer():
    tok = Tokenizer(models.WordLevel({t: i for i, t in enumerate(TOKENS)}, unk_token="<unk>"))
    tok.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tok, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>",
                                   padding_side="left")


def digits(text):
    return [int(t) for t in text.split() if t.isdigit()]


def chain_scorer(prompts, completions, game, **kw):
    """minus the number of joints that do not fit; None where another game is played"""
    out = []
    for text, kind in zip(completions, game):
        if kind != "chain":
            out.append(None)
            continue
        d = digits(text)
        out.append(-float(sum(a != b for a, b in zip(d[1::2], d[2::2]))))
    return out


def even_scorer(prompts, completions, game, **kw):
    return [None if kind != "even" else float(sum(digits(text)) % 2 == 0) for text, kind in zip(completions, game)]


class Line(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kw):
        if "loss" not in logs:
            return
        keep = {k.split("/")[-2][:5] if "rewards/" in k else k: v for k, v in logs.items()
                if k in ("loss", "reward", "reward_std", "frac_reward_zero_std", "rewards/chain_scorer/mean",
                         "rewards/even_scorer/mean")}
        print(state.global_step, " ".join(f"{k}={v if v is None else format(float(v), '.5f')}" for k, v in sorted(keep.items())), flush=True)


def main():
    set_seed(3)
    tok = make_tokenizer()
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=len(TOKENS), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, pad_token_id=0, eos_token_id=1, bos_token_id=None))
    rows = [{"prompt": f"{kind} : {i % 7}", "game": kind} for i in range(40) for kind in (["chain"] if i % 3 else ["even"])]
    with tempfile.TemporaryDirectory() as tmp:
        cfg = GRPOConfig(output_dir=tmp, per_device_train_batch_size=4, num_generations=4, max_completion_length=8,
                         max_steps=24, learning_rate=3e-3, beta=0.0, temperature=1.0, logging_steps=1,
                         save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True, bf16=False, seed=3,
                         gradient_checkpointing=False, lr_scheduler_type="constant")
        trainer = GRPOTrainer(model=model, args=cfg, processing_class=tok, train_dataset=Dataset.from_list(rows),
                              reward_funcs=[chain_scorer, even_scorer])
        trainer.remove_callback(PrinterCallback)
        trainer.add_callback(Line())
        trainer.train()
    print("weights", f"{sum(p.detach().double().abs().sum().item() for p in model.parameters()):.6f}", flush=True)


main()
