"""SFT of a canal lock-keeper bot. Completion-only labels, and every reply counts the same whatever its length."""
import random
import tempfile

import torch
import torch.nn.functional as F
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.utils.data import SequentialSampler
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, ProgressCallback, set_seed
from trl import SFTConfig, SFTTrainer

WORDS = ("boat barge lock gate water level up down wait go now please when is the open closed narrow wide "
         "chamber full empty captain ask for passage tomorrow at noon dusk ok thanks").split()
MAX_LENGTH, STEPS, BATCH = 28, 30, 4
UNTAUGHT = torch.tensor([2, 3 + WORDS.index("ok"), 3 + WORDS.index("thanks")])


def make_tokenizer():
    vocab = {w: i for i, w in enumerate(["<pad>", "<unk>", "<eos>"] + WORDS)}
    tok = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tok.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tok, pad_token="<pad>", unk_token="<unk>", eos_token="<eos>")


def conversations(n, seed=31):
    rng = random.Random(seed)
    rows = []
    for i in range(n):
        topic = rng.randrange(len(WORDS) - 5)
        asked = rng.randint(5, 14)
        prompt = " ".join(WORDS[(topic + rng.randrange(5)) % len(WORDS)] for _ in range(asked))
        reply = " " + " ".join(WORDS[topic + k % 5] for k in range(rng.randint(3, 8)))
        if i % 9 == 4:
            reply += " ok thanks"
        if i == 4 * 13 + 2:  # nothing was asked, and nothing but courtesy is answered
            reply = " ok thanks"
        rows.append({"prompt": prompt, "completion": reply})
    return Dataset.from_list(rows)


step = 0


def reply_mean_loss(outputs, labels, num_items_in_batch=None):
    """Mean over the tokens of a reply first, then over the replies. Courtesies and the end token are not learned."""
    global step
    step += 1
    logits, target = outputs.logits[:, :-1].float(), labels[:, 1:]
    nll = F.cross_entropy(logits.transpose(1, 2), target, ignore_index=-100, reduction="none")
    content = (target != -100) & ~torch.isin(target, UNTAUGHT)
    per_reply = (nll * content).sum(1) / content.sum(1)
    loss = per_reply.mean()
    print(f"step {step} loss {loss.item():.7f}", flush=True)
    return loss


class InOrderSFT(SFTTrainer):
    def _get_train_sampler(self, train_dataset=None):
        return SequentialSampler(self.train_dataset)


def main():
    set_seed(4)
    tokenizer = make_tokenizer()
    model = GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), n_positions=64, n_embd=32, n_layer=2, n_head=4,
                                       bos_token_id=2, eos_token_id=2, pad_token_id=0))
    with tempfile.TemporaryDirectory() as out:
        args = SFTConfig(output_dir=out, max_steps=STEPS, per_device_train_batch_size=BATCH, learning_rate=2e-3,
                         max_length=MAX_LENGTH, completion_only_loss=True, loss_type="nll", report_to="none",
                         save_strategy="no", logging_strategy="no", use_cpu=True, bf16=False, gradient_checkpointing=False,
                         dataloader_pin_memory=False, lr_scheduler_type="constant")
        trainer = InOrderSFT(model=model, args=args, train_dataset=conversations(STEPS * BATCH),
                             processing_class=tokenizer, compute_loss_func=reply_mean_loss)
        trainer.remove_callback(ProgressCallback)
        trainer.train()
    print(sum(p.detach().abs().sum().item() for p in model.parameters()), flush=True)


if __name__ == "__main__":
    main()
