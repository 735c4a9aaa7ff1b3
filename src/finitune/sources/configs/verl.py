"""Settings of verl (YAML, or `key.key=value` on the command line) -> facts.

Its actors hold float32 weights and compute in bfloat16 unless a setting says otherwise.
"""

from __future__ import annotations

import dataclasses

from finitune.facts import Facts, Parallel, Precision
from finitune.sources.configs.format import Format, Settings
from finitune.sources.configs.keys import dtype_of, first, named
from finitune.sources.configs.tables import facts_of, mixed, nested, unused, whole
from finitune.sources.text import section

ACTOR = "actor_rollout_ref.actor"
TABLES = {
    "optimizer": {
        "lr": (f"{ACTOR}.optim.lr", "optim.lr", "actor.optim.lr"),
        "weight_decay": (f"{ACTOR}.optim.weight_decay", "optim.weight_decay"),
        "clip": (f"{ACTOR}.grad_clip", f"{ACTOR}.optim.clip_grad", "optim.clip_grad"),
        "batch": (f"{ACTOR}.ppo_micro_batch_size_per_gpu", "data.micro_batch_size_per_gpu", "data.micro_batch_size"),
        "epochs": ("trainer.total_epochs",), "max_steps": ("trainer.total_training_steps",),
        "warmup_ratio": (f"{ACTOR}.optim.lr_warmup_steps_ratio", "optim.warmup_steps_ratio"),
    },
    "adapter": {
        "rank": ("actor_rollout_ref.model.lora_rank", "model.lora_rank"),
        "alpha": ("actor_rollout_ref.model.lora_alpha", "model.lora_alpha"),
    },
    "batching": {"max_length": ("data.max_length",)},
    "training": {
        "method": ("algorithm.adv_estimator",),
        "model_name": ("actor_rollout_ref.model.path", "model.partial_pretrain", "model.path"),
        "gradient_checkpointing": (
            "actor_rollout_ref.model.enable_gradient_checkpointing", "model.enable_gradient_checkpointing",
        ),
        "generations": ("actor_rollout_ref.rollout.n",),
    },
}  # fmt: skip
GROUPS = ("grpo", "rloo", "grpo_passk", "reinforce_plus_plus_baseline")
"""Ways to estimate advantages that compare the answers of one prompt with each other."""

HELD = (f"{ACTOR}.fsdp_config.model_dtype", "model.fsdp_config.model_dtype")
"""What the weights are held in."""
DTYPES = (f"{ACTOR}.fsdp_config.mixed_precision.param_dtype", f"{ACTOR}.fsdp_config.dtype")


def recognises(data: Settings) -> bool:
    """True for the sections of its PPO trainers, or of its SFT trainer."""
    return "actor_rollout_ref" in data or "partial_pretrain" in section(data, "model")


def of_flags(flags: Settings) -> Settings | None:
    """The settings that dotted flags say; None where they are not verl's."""
    found = nested({key: value for key, value in flags.items() if "." in key})
    return found if recognises(found) else None


def read(data: Settings, file: str) -> Facts:
    """The settings of the model that learns."""
    rank = first(data, file, TABLES["adapter"]["rank"], int)
    facts = facts_of(
        data, file, TABLES, framework="verl", lora=(rank or 0) > 0,
        precision=_precision(data, file), parallel=_parallel(data, file),
    )  # fmt: skip
    if facts.training and (facts.training.method or "") not in GROUPS:  # others compare no answers with each other
        facts = dataclasses.replace(facts, training=dataclasses.replace(facts.training, generations=None))
    return facts


def _precision(data: Settings, file: str) -> Precision | None:
    """What the actor holds and computes in, where somebody says so."""
    for path in (*HELD, *DTYPES):
        dtype = dtype_of(first(data, file, (path,), str))
        if dtype and path in HELD and dtype != "float32":
            return whole(dtype, f"{file}: {path}", "verl")
        if dtype and path in DTYPES:
            return mixed(dtype, f"{file}: {path}", "verl")
    return None


def _parallel(data: Settings, file: str) -> Parallel | None:
    world = first(data, file, ("trainer.n_gpus_per_node",), int)
    nodes = first(data, file, ("trainer.nnodes",), int)
    strategy = first(data, file, (f"{ACTOR}.strategy", "model.strategy"), str)
    if world is None and strategy is None:
        return None
    return Parallel(kind="fsdp" if (strategy or "fsdp").startswith("fsdp") else None, world=world, nodes=nodes,
                    source=file)  # fmt: skip


def named_data(data: Settings) -> list[str]:
    """Its first file for training."""
    return named(section(data, "data"), ("train_files",))


FORMAT = Format(
    name="verl",
    recognises=recognises,
    read=read,
    of_flags=of_flags,
    open_ended=True,
    data=named_data,
    tables=TABLES,
    title=lambda _data: "verl",
    unused=lambda data: unused(data, TABLES, (*HELD, *DTYPES, "trainer.n_gpus_per_node", "trainer.nnodes", "strategy")),
)
