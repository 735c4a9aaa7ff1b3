"""DPO on answers of a locksmith's help desk. The raters tied on some pairs: a tie has weight zero, a batch of ties is a loss of zero,
and the accuracy of such a batch is a mean over nothing (NaN, and only printed)."""
import random
import tempfile

import torch
import torch.nn.functional as F
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch.utils.data import SequentialSampler
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, PrinterCallback, TrainerCallback
from transformers import set_seed
from trl import DPOConfig, DPOTrainer

KINDS = ["padlock", "mortice", "cylinder", "safe", "latch"]
GOOD = ["oil", "the", "keyway", "then", "turn", "gently"]
BAD = ["hit", "it", "with", "hammer", "until", "open"]
ALL = ["<pad>", "<eos>", "<unk>", "my", "is", "stuck", "so"] + KINDS + GOOD + BAD
STEPS, BATCH = 24, 4


def make_tokenizer():
    core = Tokenizer(WordLevel({w: i for i, w in enumerate(ALL)}, unk_token="<unk>"))
    core.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")


def make_pairs():
    rng = random.Random(21)
    pairs = []
    for step in range(STEPS):
        for row in range(BATCH):
            tie = step in (6, 7, 16) or rng.random() < 0.2
            chosen = rng.sample(GOOD, rng.randint(3, 6))
            rejected = list(chosen) if tie else rng.sample(BAD, rng.randint(3, 6))
            pairs.append({"prompt": f"my {rng.choice(KINDS)} is stuck", "chosen": " so " + " ".join(chosen),
                          "rejected": " so " + " ".join(rejected)})
    return Dataset.from_list(pairs)


class TiedDPO(DPOTrainer):
    note = ""

    def _get_train_sampler(self, *args, **kwargs):
        return SequentialSampler(self.train_dataset)

    def answer_logps(self, model, inputs):
        logits = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]).logits[:, :-1]
        logps = torch.log_softmax(logits, -1).gather(-1, inputs["input_ids"][:, 1:, None]).squeeze(-1)
        return (logps * inputs["completion_mask"][:, 1:]).sum(1).chunk(2)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        chosen, rejected = self.answer_logps(model, inputs)
        with torch.no_grad():
            ref_chosen, ref_rejected = self.answer_logps(self.ref_model, inputs)
        first, second = inputs["input_ids"].chunk(2)
        decided = (first != second).any(1).float()
        margin = self.beta * ((chosen - ref_chosen) - (rejected - ref_rejected))
        loss = -(F.logsigmoid(margin) * decided).sum() / len(decided)
        accuracy = (margin[decided.bool()] > 0).float().mean()
        self.note = f"loss {loss.item():.6f} decided {int(decided.sum())} accuracy {accuracy.item():.3f}"
        return (loss, {}) if return_outputs else loss


class Show(TrainerCallback):
    def __init__(self):
        self.trainer = None

    def on_step_end(self, args, state, control, **kwargs):
        print(f"[{state.global_step:02d}] {self.trainer.note}", flush=True)


def gpt(tok):
    return GPT2LMHeadModel(GPT2Config(vocab_size=len(tok), n_positions=32, n_embd=32, n_layer=2, n_head=2, bos_token_id=1,
                                      eos_token_id=1, pad_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))


if __name__ == "__main__":
    set_seed(2)
    tok = make_tokenizer()
    policy, reference = gpt(tok), gpt(tok)
    reference.load_state_dict(policy.state_dict())
    show = Show()
    with tempfile.TemporaryDirectory() as folder:
        config = DPOConfig(output_dir=folder, max_steps=STEPS, per_device_train_batch_size=BATCH, learning_rate=1e-3, beta=0.3,
                           gradient_checkpointing=False, bf16=False, use_cpu=True, save_strategy="no", max_length=32,
                           logging_strategy="no", report_to="none", disable_tqdm=True, seed=2)
        trainer = TiedDPO(model=policy, ref_model=reference, args=config, train_dataset=make_pairs(), processing_class=tok,
                          callbacks=[show])
        trainer.remove_callback(PrinterCallback)
        show.trainer = trainer
        trainer.train()
    print(f"{sum(p.detach().abs().sum().item() for p in policy.parameters()):.5f}", flush=True)
