"""Reward model for answers of a cobbler's counter: which of two quotes does the panel of raters like better?

Each pair carries the margin of the panel (how many raters more preferred the chosen one). Pairs on which the
panel was united should weigh more than those on which it was split.
"""
import random

import torch
import torch.nn.functional as F
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.utils.data import SequentialSampler
from transformers import LlamaConfig, LlamaForSequenceClassification, PreTrainedTokenizerFast, PrinterCallback, set_seed
from trl import RewardConfig, RewardTrainer

SEED = 20
BATCH = 4
STEPS = 30
JOBS = ["heel", "sole", "zip", "buckle", "lining", "eyelet", "welt", "toecap"]
GOOD = ["ready", "tuesday", "stitched", "leather", "guaranteed", "please", "thanks"]
POOR = ["maybe", "later", "glued", "plastic", "unsure", "busy", "closed"]
WORDS = ["<pad>", "</s>", "<unk>", "your", "will", "be", "for", "coins", "ten", "twelve", "thirty"] + JOBS + GOOD + POOR


def make_tokenizer():
    tok = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="<unk>"))
    tok.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tok, pad_token="<pad>", eos_token="</s>", unk_token="<unk>")


def quote(rng, job, good):
    tail = rng.choices(GOOD if good else POOR, k=rng.randint(2, 5))
    return " ".join(["your", job, "will", "be", *tail, "for", rng.choice(["ten", "twelve", "thirty"]), "coins"])


def make_pairs(n, rng):
    """Pairs in the order in which the panel sat. Sitting 73 to 76 was the afternoon of the two new raters,
    who split one to one on all that they were shown."""
    rows = []
    for i in range(n):
        job = rng.choice(JOBS)
        margin = rng.choice([0, 1, 2, 3, 4]) if i % BATCH else rng.choice([1, 2, 3])
        if 72 <= i < 76:
            margin = 0
        rows.append({"chosen": quote(rng, job, True), "rejected": quote(rng, job, rng.random() < 0.2),
                     "margin": float(margin)})
    return Dataset.from_list(rows)


class PanelRewardTrainer(RewardTrainer):
    """Bradley-Terry loss in which each pair has the share of the margin that the panel gave to it."""

    def _get_train_sampler(self, train_dataset=None):
        return SequentialSampler(train_dataset if train_dataset is not None else self.train_dataset)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        margin = inputs["margin"].float()
        out = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"])
        chosen, rejected = out.logits.squeeze(-1).chunk(2)
        share = margin / margin.sum()
        loss = -(share * F.logsigmoid(chosen - rejected)).sum()
        if model.training:
            right = int((chosen > rejected).sum())
            print(f"pair batch {self.state.global_step + 1:3d}  loss {loss.item():.8f}  right {right}/{BATCH}", flush=True)
        return (loss, out) if return_outputs else loss


def main():
    set_seed(SEED)
    rng = random.Random(SEED)
    tok = make_tokenizer()
    config = LlamaConfig(vocab_size=len(WORDS), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=2, num_labels=1, pad_token_id=tok.pad_token_id,
                         eos_token_id=tok.eos_token_id, bos_token_id=None)
    model = LlamaForSequenceClassification(config)
    args = RewardConfig(output_dir="/tmp/cobbler_quotes", per_device_train_batch_size=BATCH, max_steps=STEPS,
                        learning_rate=2e-3, lr_scheduler_type="constant", report_to="none", save_strategy="no",
                        logging_strategy="no", disable_tqdm=True, use_cpu=True, bf16=False, seed=SEED,
                        gradient_checkpointing=False, max_length=64, dataloader_num_workers=0)
    trainer = PanelRewardTrainer(model=model, args=args, train_dataset=make_pairs(BATCH * STEPS, rng),
                                 processing_class=tok)
    trainer.remove_callback(PrinterCallback)          # prints run times
    trainer.train()
    print(f"weights {sum(p.detach().abs().sum().item() for p in model.parameters()):.6f}", flush=True)


if __name__ == "__main__":
    main()
