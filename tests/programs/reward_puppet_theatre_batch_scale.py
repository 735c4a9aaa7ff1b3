"""Reward model for puppet theatre scripts: TRL's RewardTrainer with a batch-standardised margin."""
import os
os.environ.setdefault("HF_HUB_OFFLINE", "1")
import random
import tempfile

import torch
import torch.nn.functional as F
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2ForSequenceClassification, PreTrainedTokenizerFast, TrainerCallback, set_seed
from trl import RewardConfig, RewardTrainer

ACTORS = "punch judy crocodile policeman baby doctor ghost hangman".split()
VERBS = "hits chases fools sings bows hides snores dances".split()
PROPS = "stick sausages hat curtain drum ladder bell broom".split()


def make_tokenizer():
    words = ["<pad>", "<eos>", "<unk>", "the", "with", "and"] + ACTORS + VERBS + PROPS
    tok = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    tok.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tok, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")


def line(rng, funny):
    verb = rng.choice(VERBS[:4] if funny else VERBS[4:])
    n = rng.randint(1, 3)
    return " and ".join(f"the {rng.choice(ACTORS)} {verb} the {rng.choice(ACTORS)} with the {rng.choice(PROPS)}"
                        for _ in range(n))


def make_pairs(n, seed=5):
    rng = random.Random(seed)
    rows = []
    for _ in range(n):
        good, bad = line(rng, True), line(rng, rng.random() < 0.15)
        rows.append({"chosen": good, "rejected": bad})
    return Dataset.from_list(rows)


class ScaledMarginTrainer(RewardTrainer):
    """Bradley-Terry on margins in units of the batch, so that no pair dominates while the head is young."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        out = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"], use_cache=False)
        chosen, rejected = torch.chunk(out.logits.squeeze(-1), 2)
        margin = chosen - rejected
        spread = margin.detach().std()
        loss = -F.logsigmoid(margin / (spread + 1e-2)).mean() + 0.01 * (chosen + rejected).pow(2).mean()
        print(f"pairs {len(margin)} loss {loss.item():.7f}", flush=True)
        return (loss, out) if return_outputs else loss

    def log(self, logs, start_time=None):
        self._metrics["train"].clear()


def main():
    set_seed(11)
    tok = make_tokenizer()
    config = GPT2Config(vocab_size=len(tok), n_positions=64, n_embd=32, n_layer=2, n_head=2, num_labels=1,
                        pad_token_id=tok.pad_token_id, bos_token_id=1, eos_token_id=1,
                        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    model = GPT2ForSequenceClassification(config)
    with tempfile.TemporaryDirectory() as out:
        args = RewardConfig(output_dir=out, per_device_train_batch_size=6, num_train_epochs=2, learning_rate=1e-3,
                            report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True, use_cpu=True,
                            max_length=64, bf16=False, gradient_checkpointing=False, seed=3, lr_scheduler_type="constant")
        # 85 pairs: fourteen batches of six and what is left
        trainer = ScaledMarginTrainer(model=model, args=args, train_dataset=make_pairs(85), processing_class=tok)
        trainer.remove_callback(next((type(c) for c in trainer.callback_handler.callbacks
                                      if type(c).__name__ == "PrinterCallback"), TrainerCallback))
        trainer.train()
    print(f"{sum(p.detach().abs().sum() for p in model.parameters()).item():.4f}", flush=True)


if __name__ == "__main__":
    main()
