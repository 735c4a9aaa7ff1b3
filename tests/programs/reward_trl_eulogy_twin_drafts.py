"""Reward model for drafts of eulogies (TRL RewardTrainer) with a hinge on the distance between the two scores."""
import random
import tempfile

import torch
import torch.nn.functional as F
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.utils.data import SequentialSampler
from transformers import GPT2Config, GPT2ForSequenceClassification, PreTrainedTokenizerFast, ProgressCallback, set_seed
from trl import RewardConfig, RewardTrainer

GOOD = "kind gentle brave laughed garden mother remembered always home light".split()
FLAT = "person did things was there often had said went some".split()
GLUE = "and she he we the of in who".split()
STEPS, BATCH = 32, 4


def tokenizer():
    words = ["<pad>", "<unk>", "<eos>"] + GOOD + FLAT + GLUE
    tok = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    tok.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tok, pad_token="<pad>", unk_token="<unk>", eos_token="<eos>")


def draft(rng, warmth):
    return " ".join(rng.choice(GLUE if k % 2 else (GOOD if rng.random() < warmth else FLAT)) for k in range(12))


def pairs(n):
    rng = random.Random(88)
    rows = []
    for i in range(n):
        first = draft(rng, 0.8)
        second = draft(rng, 0.3)
        if i == 16 * BATCH + 1:
            second = first  # both writers had copied the same page
        rows.append({"chosen": first, "rejected": second})
    return Dataset.from_list(rows)


class SpreadRewardTrainer(RewardTrainer):
    """-log sigmoid(difference) plus a hinge that keeps the scores of a pair at least `room` apart in length."""
    room, weight, seen = 0.5, 0.2, 0

    def _get_train_sampler(self, train_dataset=None):
        return SequentialSampler(self.train_dataset)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        out = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"])
        chosen, rejected = torch.chunk(out.logits.float(), 2)
        gap = (chosen - rejected).pow(2).sum(-1)
        distance = gap.sqrt()
        hinge = F.relu(self.room - distance).mean()
        preference = -F.logsigmoid(chosen - rejected).mean()
        loss = preference + self.weight * hinge
        self.seen += 1
        print(f"step {self.seen} loss {loss.item():.7f} hinge {hinge.item():.7f}", flush=True)
        return (loss, out) if return_outputs else loss


def main():
    set_seed(21)
    tok = tokenizer()
    model = GPT2ForSequenceClassification(GPT2Config(vocab_size=len(tok), n_positions=32, n_embd=32, n_layer=1, n_head=2,
                                                     num_labels=1, pad_token_id=0, bos_token_id=2, eos_token_id=2))
    with tempfile.TemporaryDirectory() as out:
        args = RewardConfig(output_dir=out, max_steps=STEPS, per_device_train_batch_size=BATCH, learning_rate=1e-3,
                            report_to="none", save_strategy="no", logging_strategy="no", use_cpu=True, bf16=False,
                            gradient_checkpointing=False, dataloader_pin_memory=False, lr_scheduler_type="constant")
        trainer = SpreadRewardTrainer(model=model, args=args, train_dataset=pairs(STEPS * BATCH), processing_class=tok)
        trainer.remove_callback(ProgressCallback)
        trainer.train()
    print(sum(p.detach().abs().sum().item() for p in model.parameters()), flush=True)


if __name__ == "__main__":
    main()
