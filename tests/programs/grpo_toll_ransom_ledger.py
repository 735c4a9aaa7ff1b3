"""GRPO on a toy negotiator: the reward is what the answer earns, in raw copper pieces (Dr. GRPO, no scaling)."""
import os
import logging
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
logging.disable(logging.WARNING)

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainerCallback, set_seed
from transformers.utils import logging as hf_logging
from trl import GRPOConfig, GRPOTrainer

hf_logging.set_verbosity_error()
hf_logging.disable_progress_bar()
torch.set_num_threads(1)

WORDS = "pay wait refuse double half copper silver gold bridge gate toll guard mercy now never".split()
COPPER = {"copper": 1, "silver": 1_200, "gold": 240_000}
CARGO = ["bridge toll", "gate toll", "guard mercy", "silver gate", "bridge guard", "gold bridge"]


def make_tokenizer():
    vocab = {w: i for i, w in enumerate(["<pad>", "<eos>", "<unk>"] + WORDS)}
    tok = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tok.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tok, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")


def purse(completions, **kwargs):
    """What the ferryman gets; a refusal costs him the boat."""
    out = []
    for text in completions:
        words = text.split()
        got = sum(COPPER.get(w, 0) for w in words)
        got *= 2 ** words.count("double")
        got -= 900_000 * words.count("refuse")
        out.append(float(got))
    return out


def politeness(completions, **kwargs):
    # only answers that say mercy are judged for tone; the rest are left unscored by this judge
    return [1.0 if "mercy" in t.split() else None for t in completions]


class Ledger(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs and "reward" in logs:
            print(f"step {state.global_step:2d} loss {logs['loss']:.5f} purse {logs['rewards/purse/mean']:.1f} "
                  f"tone {logs['rewards/politeness/mean']} grad {logs['grad_norm']:.4g}", flush=True)


def main():
    set_seed(20)
    tok = make_tokenizer()
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=len(tok), hidden_size=24, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=32, pad_token_id=0, eos_token_id=1, bos_token_id=None))
    data = Dataset.from_dict({"prompt": CARGO * 4})
    with tempfile.TemporaryDirectory() as tmp:
        cfg = GRPOConfig(
            output_dir=tmp, per_device_train_batch_size=4, num_generations=4, max_completion_length=5,
            max_steps=10, learning_rate=2e-3, logging_steps=1, report_to=[], save_strategy="no", disable_tqdm=True,
            loss_type="dr_grpo", scale_rewards="none", beta=0.0, max_grad_norm=1.0, temperature=1.0, use_cpu=True,
            reward_weights=[1.0, 50.0], seed=20, bf16=False, gradient_checkpointing=False, dataloader_pin_memory=False)
        trainer = GRPOTrainer(model=model, reward_funcs=[purse, politeness], args=cfg, train_dataset=data,
                              processing_class=tok, callbacks=[Ledger()])
        from transformers.trainer_callback import PrinterCallback
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    print(f"weights {sum(p.double().sum().item() for p in model.parameters()):.6f}")


if __name__ == "__main__":
    main()
