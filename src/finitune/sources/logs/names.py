"""What programs and trackers call a signal -> its name in a recording: `train/loss`, `lm loss`, `gnorm`, `actor/lr`."""

from __future__ import annotations

import re
from functools import lru_cache

_NAMES = {
    "loss": (
        r"((reduced_)?train(ing)?[/_ ]?|(losses/)?total_|lm[_ ]|gpt_|step_)?loss(_step)?", r"loss/train/total",
        r"Train/.*loss", r"(actor/)?pg_loss|policy_loss|act_loss|pg", r"loss/policy(_avg)?",
    ),
    "grad_norm": (
        r"((train(ing)?|actor|optim(izer)?)[/_ ])?(grad(ient)?[_ ]?norm|gnorm|grad_2\.0_norm_total)(_step)?",
        r"l2_norm/grad/global",
    ),
    "lr": (r"((train|actor|optim(izer)?)/)?(lr|learning[_ ]?rate)", r"lr-.*|Train/.*lr", r"act(or)?_lr"),
    "loss_scale": (r"(train/)?loss_scale|Train/.*loss_scale",),
    "eval_loss": (r"(eval|val|valid|validation|test)[/_ ]?loss(_epoch)?",),
    "kl": (r"kl|objective/kl|mean_kl", r"(actor/)?kl_loss"),
}  # fmt: skip
"""Signal -> what it is called; the last of each are names of verl, OpenRLHF and TRL's PPO."""
SIGNALS = {name: re.compile("|".join(said), re.IGNORECASE) for name, said in _NAMES.items()}
_OF_POLICIES = re.compile(r"actor[/_].*|(loss/)?policy[_/].*|objective/.*|act_.*|pg(_loss)?", re.IGNORECASE)
LONGEST = 300
SUMMARY = "train_runtime"
"""A key of the last record of transformers, whose `train_loss` is the mean of the whole run."""


@lru_cache(maxsize=4096)
def signal_of(name: str) -> str | None:
    """The signal that somebody calls so; None for a name that is none of them."""
    plain = name.strip()
    if len(plain) > LONGEST:
        return None
    return next((one for one, known in SIGNALS.items() if known.fullmatch(plain)), None)


@lru_cache(maxsize=4096)
def of_policies(name: str) -> bool:
    """Whether it is a name of reinforcement learning, whose loss may be 0 and of either sign."""
    return "reward" in name or (len(name) <= LONGEST and _OF_POLICIES.fullmatch(name) is not None)


@lru_cache(maxsize=4096)
def meant(name: bytes) -> tuple[str | None, bool]:
    """Both of a name in a text, at one look."""
    said = name.decode(errors="replace")
    return signal_of(said), of_policies(said)
