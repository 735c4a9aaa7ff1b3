"""DPO for the allotment association's answering machine.

Plain DPO left many pairs barely separated, so we ask for a reward margin of our own and
penalise the root-mean-square violation of it, batch by batch.
"""
import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["DS_ACCELERATOR"] = "cpu"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
import tempfile
import warnings
from dataclasses import dataclass

warnings.filterwarnings("ignore")
import numpy as np
import torch
import torch.nn.functional as F
import transformers
from datasets import Dataset
from datasets.utils.logging import disable_progress_bar
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainerCallback, set_seed
from transformers.trainer_callback import PrinterCallback
from trl import DPOConfig, DPOTrainer

disable_progress_bar()
transformers.logging.set_verbosity_error()
torch.set_num_threads(1)


@dataclass
class Margin:
    beta: float = 0.1
    target: float = 0.8
    weight: float = 0.5


def make_tokenizer():
    words = [f"{a}{b}" for a in ("bean", "plot", "hose", "shed", "leek", "frost") for b in "abcdefgh"]
    vocab = {w: i for i, w in enumerate(["<pad>", "<s>", "</s>", "<unk>", *words])}
    t = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    t.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=t, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>"), words


def pairs(words, n):
    rng = np.random.default_rng(8)
    polite, curt = words[:24], words[16:]                 # the two registers overlap a little
    for _ in range(n):
        yield {"prompt": " ".join(rng.choice(words, 5)),
               "chosen": " " + " ".join(rng.choice(polite, rng.integers(4, 8))),
               "rejected": " " + " ".join(rng.choice(curt, rng.integers(3, 8)))}


class MarginDPO(DPOTrainer):
    margin = Margin()

    def _seq_logps(self, model, batch):
        out = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], use_cache=False)
        lp = F.log_softmax(out.logits[:, :-1].float(), dim=-1)
        lp = lp.gather(-1, batch["input_ids"][:, 1:, None]).squeeze(-1)
        return (lp * batch["completion_mask"][:, 1:]).sum(-1)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        m = self.margin
        pol = self._seq_logps(model, inputs)
        with torch.no_grad():
            ref = self._seq_logps(self.ref_model, inputs)
        chosen, rejected = (m.beta * (pol - ref)).chunk(2)
        gap = chosen - rejected
        violation = (m.target - gap) * (gap < m.target)
        rms = violation.pow(2).mean().sqrt()
        return -F.logsigmoid(gap).mean() + m.weight * rms


class Out(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kw):
        if logs and "loss" in logs:
            print(f"{state.global_step:02d} dpo+margin {float(logs['loss']):.6f}", flush=True)


def build(vocab):
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=vocab, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2))


def run():
    set_seed(77)
    tok, words = make_tokenizer()
    policy, ref = build(len(tok)), build(len(tok))
    ref.load_state_dict(policy.state_dict())
    with tempfile.TemporaryDirectory() as out:
        cfg = DPOConfig(
            output_dir=out, per_device_train_batch_size=2, max_steps=28, learning_rate=6e-3, logging_steps=1,
            save_strategy="no", report_to="none", disable_tqdm=True, use_cpu=True, bf16=False, seed=77, max_length=40,
            lr_scheduler_type="constant", gradient_checkpointing=False, logging_nan_inf_filter=False, optim="adamw_torch")
        tr = MarginDPO(model=policy, ref_model=ref, args=cfg, processing_class=tok,
                       train_dataset=Dataset.from_list(list(pairs(words, 200))), callbacks=[Out()])
        tr.remove_callback(PrinterCallback)
        tr.train()
    print("sum of policy weights:", round(sum(float(p.detach().double().sum()) for p in policy.parameters()), 5))


if __name__ == "__main__":
    run()
