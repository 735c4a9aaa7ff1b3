"""SFT of a tiny Llama on lighthouse keepers' logs with TRL, packed into blocks of 48 tokens.

The logs are read in the order of the years: the keeper changes, and with him the wording.
"""

import random
import tempfile
import warnings

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.utils.data import SequentialSampler
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainerCallback
from transformers.trainer_callback import PrinterCallback
from trl import SFTConfig, SFTTrainer

warnings.filterwarnings("ignore")

FIRST_KEEPER = ("wind", "from", "north", "west", "lamp", "lit", "at", "dusk", "sea", "calm", "fog", "lifted", "noon")
SECOND_KEEPER = (
    "oil",
    "spent",
    "glass",
    "cleaned",
    "brig",
    "sighted",
    "bell",
    "rung",
    "hourly",
    "gale",
    "mended",
    "rope",
)


def entries(rng, words, n):
    """Each keeper has his habits: a few openings, and runs of words in a fixed cycle."""
    out = []
    for _ in range(n):
        start = rng.randrange(len(words))
        out.append(" ".join(words[(start + k) % len(words)] for k in range(rng.randint(4, 14))) + " <eos>")
    return out


def make_tokenizer():
    vocab = {w: i for i, w in enumerate(["<pad>", "<eos>", "<unk>", *FIRST_KEEPER, *SECOND_KEEPER])}
    raw = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")


class KeeperTrainer(SFTTrainer):
    def _get_train_sampler(self, *args, **kwargs):
        return SequentialSampler(self.train_dataset)


class LogBook(TrainerCallback):
    """One line per update. The sightings score needs a sighting in the window; there is often none."""

    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" not in logs:
            return
        sighted = state.global_step % 6 == 0
        score = torch.tensor([1.0] if sighted else []).mean().item()
        print(
            f"update {state.global_step} loss {logs['loss']} lr {logs['learning_rate']:.3e} sightings {score:.2f}",
            flush=True,
        )


def main():
    torch.manual_seed(1871)
    rng = random.Random(1871)
    text = entries(rng, FIRST_KEEPER, 420) + entries(rng, SECOND_KEEPER, 240)
    tokenizer = make_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config)
    model.model.embed_tokens.weight.requires_grad_(False)
    with tempfile.TemporaryDirectory() as folder:
        args = SFTConfig(
            output_dir=folder,
            max_steps=40,
            per_device_train_batch_size=4,
            learning_rate=8e-3,
            warmup_steps=5,
            lr_scheduler_type="linear",
            packing=True,
            packing_strategy="wrapped",
            max_length=48,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            bf16=False,
            fp16=False,
            disable_tqdm=True,
            seed=1871,
            dataset_text_field="text",
            gradient_checkpointing=False,
        )
        trainer = KeeperTrainer(
            model=model,
            args=args,
            processing_class=tokenizer,
            train_dataset=Dataset.from_dict({"text": text}),
            callbacks=[LogBook()],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    print(f"weights {sum(p.detach().abs().sum() for p in model.parameters()).item():.3f}")


if __name__ == "__main__":
    main()
