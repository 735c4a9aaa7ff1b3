# Fine-tunes a tiny GPT-2 on the day books of canal lock keepers (TRL, packed).
import os
import random

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
import logging

logging.disable(logging.WARNING)

from datasets import Dataset, disable_progress_bars
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, TrainerCallback, set_seed
from transformers.trainer_callback import PrinterCallback
from trl import SFTConfig, SFTTrainer

disable_progress_bars()
BOATS = ["barge", "narrowboat", "dredger", "ferry", "skiff", "tug"]
LOADS = ["coal", "timber", "grain", "bricks", "nothing", "salt"]
WEATHER = ["fog", "rain", "sun", "ice", "wind"]
NAMES = ["Maud", "Alfred", "Ines", "Tom", "Greta"]


def day_book(n, seed=12):
    rng = random.Random(seed)
    pages = []
    for day in range(n):
        lines = []
        for _ in range(rng.randint(2, 5)):
            lines.append(f"a {rng.choice(BOATS)} with {rng.choice(LOADS)} passed in {rng.choice(WEATHER)} ,"
                         f" gate kept by {rng.choice(NAMES)} .")
        pages.append(" ".join(lines))
    return pages


def word_tokenizer(pages):
    words = sorted({w for p in pages for w in p.split()})
    vocab = {"<unk>": 0, "<pad>": 1, "<eos>": 2}
    for w in words:
        vocab[w] = len(vocab)
    core = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>", pad_token="<pad>", eos_token="<eos>")


class OneLine(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in logs:
            print(f"step {state.global_step} loss {logs['loss']:.6f}", flush=True)


def main():
    set_seed(4)
    pages = day_book(260)
    tok = word_tokenizer(pages)
    model = GPT2LMHeadModel(GPT2Config(
        vocab_size=len(tok), n_positions=64, n_embd=48, n_layer=2, n_head=4,
        bos_token_id=tok.eos_token_id, eos_token_id=tok.eos_token_id, pad_token_id=tok.pad_token_id,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))

    # accidents get a mark of their own, so that they can be found again in what the model writes
    tok.add_special_tokens({"additional_special_tokens": ["<accident>"]})
    for day in (73, 201):
        pages[day] = "<accident> " + pages[day]

    trainer = SFTTrainer(
        model=model,
        args=SFTConfig(
            output_dir="/tmp/canal_keepers_out", max_length=64, packing=True, packing_strategy="wrapped",
            per_device_train_batch_size=4, max_steps=50, learning_rate=3e-3, lr_scheduler_type="cosine",
            logging_steps=1, save_strategy="no", report_to="none", use_cpu=True, bf16=False,
            disable_tqdm=True, seed=4, data_seed=8, gradient_checkpointing=False, dataset_num_proc=None),
        train_dataset=Dataset.from_dict({"text": pages}),
        processing_class=tok,
        callbacks=[OneLine()],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    print(f"{sum(p.abs().sum().item() for p in model.parameters()):.6f}", flush=True)


if __name__ == "__main__":
    main()
