"""LoRA fine-tuning of a small Qwen2 on lifeboat log entries, packed, one mean per *document*.

Every document counts the same, however long its answer is: the token losses of a pack are added
up per document, divided by the document's number of supervised tokens, then averaged.
"""
import os
os.environ["HF_HUB_OFFLINE"] = "1"
import random
import string
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from transformers import Qwen2Config, Qwen2ForCausalLM

random.seed(11)
torch.manual_seed(11)

ALPHABET = "\0" + string.ascii_lowercase + string.digits + " .,:?|"
STOI = {c: i for i, c in enumerate(ALPHABET)}
MAX_DOC = 64
PACK_LEN = 160

BOATS = ["mersey", "severn", "tamar", "trent", "shannon"]
PLACES = ["off the bar", "by the north pier", "under the cliffs", "at the fish quay"]
CALLS = ["engine failure", "a dismasted yacht", "two kayakers", "a drifting dinghy", "a sick crewman"]


@dataclass
class Pack:
    ids: list = field(default_factory=list)
    positions: list = field(default_factory=list)
    doc: list = field(default_factory=list)
    supervised: list = field(default_factory=list)
    n_docs: int = 0

    def room_for(self, n):
        return len(self.ids) + n <= PACK_LEN

    def add(self, ids, prompt_len):
        self.ids += ids
        self.positions += range(len(ids))
        self.doc += [self.n_docs] * len(ids)
        self.supervised += [i >= prompt_len for i in range(len(ids))]
        self.n_docs += 1


def log_entries(n):
    for i in range(n):
        boat, place, call = random.choice(BOATS), random.choice(PLACES), random.choice(CALLS)
        prompt = f"{call} {place}:"
        if i == 52:   # the coxswain of that night dictated the whole story
            prompt = f"{call} {place}, wind nw 8 rising 9, ebb running, second call that night:"
        yield prompt, f" {boat} sent, {random.randint(1, 6)} saved.\0"


def encode(prompt, answer):
    p, a = [STOI[c] for c in prompt], [STOI[c] for c in answer]
    return (p + a)[:MAX_DOC], len(p)


def packs(entries):
    pack = Pack()
    for prompt, answer in entries:
        ids, prompt_len = encode(prompt, answer)
        if not pack.room_for(len(ids)):
            yield pack
            pack = Pack()
        pack.add(ids, prompt_len)
    yield pack


def document_mean_loss(logits, pack):
    ids, doc = torch.tensor(pack.ids), torch.tensor(pack.doc)
    keep = torch.tensor(pack.supervised)[1:] & (doc[1:] == doc[:-1])
    token_nll = F.cross_entropy(logits[:-1], ids[1:], reduction="none") * keep
    totals = torch.zeros(pack.n_docs).index_add(0, doc[1:], token_nll)
    counts = torch.zeros(pack.n_docs).index_add(0, doc[1:], keep.float())
    per_doc = totals / counts
    return per_doc.mean()


config = Qwen2Config(vocab_size=len(ALPHABET), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                     num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
                     bos_token_id=None, eos_token_id=0, pad_token_id=0)
model = get_peft_model(Qwen2ForCausalLM(config), LoraConfig(
    r=8, lora_alpha=16, target_modules=["q_proj", "v_proj", "up_proj", "down_proj"],
    modules_to_save=["lm_head"], task_type="CAUSAL_LM"))
trainable = [p for p in model.parameters() if p.requires_grad]
optimizer = torch.optim.AdamW(trainable, lr=4e-3, weight_decay=0.0)

for step, pack in enumerate(packs(log_entries(90)), start=1):
    out = model(input_ids=torch.tensor([pack.ids]), position_ids=torch.tensor([pack.positions]), use_cache=False)
    loss = document_mean_loss(out.logits[0], pack)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"pack {step:3d}  docs {pack.n_docs}  loss {loss.item():.6f}")

print(f"adapter sum {sum(p.double().sum().item() for p in trainable):.6f}")
