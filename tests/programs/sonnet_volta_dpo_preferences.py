# I write sonnets and let a very small GPT-2 write against me. Readers on my page choose between two
# continuations of an opening line; this is the DPO run on their choices.
import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"
os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

import copy
import logging
import random
import tempfile
import warnings

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)

from datasets import Dataset, disable_progress_bars
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, TrainerCallback, set_seed
from transformers.trainer_callback import PrinterCallback
from trl import DPOConfig, DPOTrainer

disable_progress_bars()
set_seed(154)

WORDS = """summer rose time decay beauty love eye sun moon sweet bitter winter tongue verse hand death youth
thee thou my shall not when and the of in with more fair dark bright slow wild""".split()


def tokenizer():
    vocab = {w: i for i, w in enumerate(["<pad>", "<eos>", "<unk>", *WORDS])}
    tok = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tok.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tok, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")


def line(rng, n, favour=None):
    words = [rng.choice(WORDS) for _ in range(n)]
    if favour:
        words[-1] = favour
    return " ".join(words)


def votes(n, rng):
    rows = []
    for i in range(n):
        opening = line(rng, 4)
        won, lost = line(rng, 6, favour="love"), line(rng, 6, favour="decay")
        if i == 46:
            # the only reader who marked where the poem turns
            won = "<volta> " + won
        rows.append({"prompt": opening + " ", "chosen": won, "rejected": lost})
    return Dataset.from_list(rows)


class Diary(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kw):
        if logs and "loss" in logs:
            print(f"vote batch {state.global_step:02d} loss {float(logs['loss']):.4f} "
                  f"margin {float(logs['rewards/margins']):.5f}", flush=True)


def main():
    tok = tokenizer()
    policy = GPT2LMHeadModel(GPT2Config(
        vocab_size=len(tok), n_positions=64, n_embd=32, n_layer=2, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0, pad_token_id=tok.pad_token_id, eos_token_id=tok.eos_token_id, bos_token_id=tok.eos_token_id))
    # new in this year's form: the turn of the sonnet is a word of its own
    tok.add_tokens(["<volta>"])
    print("words", len(tok))
    with tempfile.TemporaryDirectory() as tmp:
        args = DPOConfig(output_dir=tmp, per_device_train_batch_size=4, max_steps=20, learning_rate=2e-3, beta=0.3,
                         logging_steps=1, save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True,
                         bf16=False, gradient_checkpointing=False, max_length=32, seed=154,
                         dataloader_pin_memory=False)
        trainer = DPOTrainer(model=policy, ref_model=copy.deepcopy(policy), args=args, processing_class=tok,
                             train_dataset=votes(80, random.Random(18)), callbacks=[Diary()])
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    print("sum", f"{sum(p.detach().double().sum().item() for p in policy.parameters()):.5f}")


if __name__ == "__main__":
    main()
