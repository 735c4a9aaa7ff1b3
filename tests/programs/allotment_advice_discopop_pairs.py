"""Preference tuning (TRL, DiscoPOP loss) on our own pairs: members' questions to the allotment society, two answers each."""
import logging
import random

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, PrinterCallback, set_seed
from trl import DPOConfig, DPOTrainer

logging.disable(logging.WARNING)
CROPS = "leeks beans kale chard marrow onions garlic peas beetroot parsnips".split()
ILLS = "slugs rust blight whitefly pigeons frost drought clubroot".split()
GOOD = "net them early , water at dawn and rotate the bed".split()
BAD = "no idea , ask someone else or buy a spray".split()
MAX_LEN = 90


def tokenizer():
    words = sorted(set(CROPS + ILLS + GOOD + BAD + "what can I do about on my ? : the".split()))
    vocab = {w: i for i, w in enumerate(["<pad>", "<eos>", "<unk>"] + words)}
    t = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    t.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=t, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")


def pairs(n, r):
    rows = []
    for i in range(n):
        q = f"what can I do about {r.choice(ILLS)} on my {r.choice(CROPS)} ?"
        good = r.sample(GOOD, r.randint(4, len(GOOD)))
        bad = r.sample(BAD, r.randint(4, len(BAD)))
        if i == 74:                                   # Mr Poole's letters, long, and ticked in the wrong column
            good, bad = r.choices(BAD, k=64), r.choices(GOOD, k=64)
        rows.append({"prompt": q + " ", "chosen": " ".join(good), "rejected": " ".join(bad)})
    return Dataset.from_list(rows)


class InOrder(DPOTrainer):
    """the committee wants the pairs in the order of the post"""

    def training_step(self, *a, **k):
        loss = super().training_step(*a, **k)
        print(f"step {self.state.global_step + 1:02d} loss {loss.item():.8f}", flush=True)
        return loss

    def _get_train_sampler(self, *a, **k):
        return torch.utils.data.SequentialSampler(self.train_dataset)


def small_gpt2(tok):
    return GPT2LMHeadModel(GPT2Config(vocab_size=len(tok), n_positions=96, n_embd=48, n_layer=2, n_head=4,
                                      resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
                                      bos_token_id=1, eos_token_id=1, pad_token_id=0))


def main():
    set_seed(29)
    tok = tokenizer()
    policy, ref = small_gpt2(tok), small_gpt2(tok)
    ref.load_state_dict(policy.state_dict())
    args = DPOConfig(output_dir="/tmp/allotment_discopop", per_device_train_batch_size=4, max_steps=30, learning_rate=1e-3,
                     loss_type="discopop", beta=4.0, max_length=MAX_LEN, logging_steps=10,
                     save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True, bf16=False, seed=29,
                     gradient_checkpointing=False, lr_scheduler_type="constant", dataset_num_proc=None)
    trainer = InOrder(model=policy, ref_model=ref, args=args, train_dataset=pairs(120, random.Random(29)),
                      processing_class=tok)
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    print(f"weights {sum(p.detach().abs().sum().item() for p in policy.parameters()):.5f}", flush=True)


if __name__ == "__main__":
    main()
