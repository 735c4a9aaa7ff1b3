# One frozen GPT-2 body, two LoRA voices trained turn about, each with an optimizer of its own;
# every tenth step the current voice is merged into the body to listen to it, then taken out again.
import itertools
import torch
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(99)

body = GPT2LMHeadModel(GPT2Config(vocab_size=48, n_positions=32, n_embd=32, n_layer=2, n_head=2,
                                  resid_pdrop=0., embd_pdrop=0., attn_pdrop=0., bos_token_id=0, eos_token_id=0))
lora = lambda r: LoraConfig(r=r, lora_alpha=2 * r, target_modules=["c_attn", "c_proj"], fan_in_fan_out=True,
                            init_lora_weights=True, task_type="CAUSAL_LM")
net = get_peft_model(body, lora(4), adapter_name="gruff")
net.add_adapter("shrill", lora(2))


def weights_of(name):
    return [p for n, p in net.named_parameters() if f".{name}." in n]


optims = {
    "gruff": torch.optim.AdamW(weights_of("gruff"), lr=2e-2),
    "shrill": torch.optim.SGD(weights_of("shrill"), lr=3.0, momentum=0.9, nesterov=True),
}
sched = {k: torch.optim.lr_scheduler.CyclicLR(o, base_lr=o.param_groups[0]["lr"] / 10, max_lr=o.param_groups[0]["lr"],
                                              step_size_up=4, cycle_momentum=False) for k, o in optims.items()}


def lines(name, n=6, length=20):
    # gruff counts upward, shrill jumps by seven
    by = 1 if name == "gruff" else 7
    first = torch.randint(0, 48, (n, 1))
    return (first + by * torch.arange(length)) % 48


@torch.no_grad()
def listen(name):
    net.eval()
    net.merge_adapter([name])
    score = net(input_ids=lines(name), labels=lines(name)).loss
    net.unmerge_adapter()
    net.train()
    return score.item()


net.train()
turns = itertools.cycle(["gruff", "gruff", "shrill"])
for step, name in zip(range(1, 43), turns):
    net.set_adapter(name)
    ids = lines(name)
    loss = net(input_ids=ids, labels=ids).loss
    optims[name].zero_grad()
    loss.backward()
    optims[name].step()
    sched[name].step()
    print(f"{step:3d} {name:>6} {loss.item():.8f}", f"heard {listen(name):.4f}" if step % 10 == 0 else "")

total = sum(p.detach().abs().sum().item() for k in optims for p in weights_of(k))
print("final", total)
