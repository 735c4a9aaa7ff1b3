"""A command as it may be kept and shown: without the secrets that were typed into it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

MASK = "***"

_ALWAYS = {"password", "passwd", "pwd", "secret", "secrets", "credential", "credentials", "apikey", "authorization"}
_WITH_OWNER = {"token", "key", "pat"}
"""Secrets only where the words before say whose: `eos_token` and `dataset_key` are none."""
_OWNERS = {
    "api", "auth", "access", "bearer", "secret", "private", "personal", "session", "login", "service", "account",
    "hub", "hf", "huggingface", "github", "gitlab", "git", "wandb", "comet", "neptune", "clearml", "swanlab", "mlflow",
    "openai", "anthropic", "azure", "aws", "dashscope", "modelscope", "ms", "judge", "encryption",
}  # fmt: skip
_PARTS = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])")
_NAMED = re.compile(r"(-{0,2}\+{0,2}[A-Za-z][\w.-]{0,100})([=:])(.+)", re.DOTALL)
_OPTION = re.compile(r"-{1,2}([A-Za-z][\w.-]{0,100})")
_ADDRESS = re.compile(r"\b([a-z][a-z0-9+.-]{0,20}://)([^\s/?#@]{1,500})@", re.IGNORECASE)
_QUERY = re.compile(
    r"([?&](?:[\w-]{0,30}(?:token|key|secret|password|signature|sig))=)[^\s&#'\"]{1,2000}", re.IGNORECASE
)
_SHAPES = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{8,}|api_org_[A-Za-z0-9]{8,}|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}|"
    r"sk-[\w-]{16,}|xox[abprs]-[\w-]{10,}|AKIA[A-Z0-9]{12,}|AIza[\w-]{30,}|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]{5,})"
)
"""Of Hugging Face, GitHub, GitLab, OpenAI, Slack, AWS and Google, as they document them, and JSON web tokens."""


def masked(words: Sequence[str]) -> list[str]:
    """The words of a command with every secret replaced by `***`.

    Secret is what follows an option or a variable with the name of one (`--hub_token X`, `--wandb-key=Y`,
    `API_KEY=Z`, `+auth.password=W`), the user and password in an address, and what has the shape of a known key.
    """
    return list(_masked(words))


def _masked(words: Sequence[str]) -> Iterator[str]:
    follows = False
    for word in words:
        if follows and not (word.startswith("--") and len(word) > 2):
            follows = False
            yield MASK
            continue
        named, option = _NAMED.fullmatch(word), _OPTION.fullmatch(word)
        follows = option is not None and _is_secret(option[1])
        if named is not None and _is_secret(named[1].lstrip("-+")):
            yield f"{named[1]}{named[2]}{MASK}"
        else:
            yield masked_text(word)


def masked_text(text: str) -> str:
    """Any text without what is a secret by its shape or its place in an address."""
    text = _ADDRESS.sub(rf"\g<1>{MASK}@", text)
    return _SHAPES.sub(MASK, _QUERY.sub(rf"\g<1>{MASK}", text))


def _is_secret(name: str) -> bool:
    """`hub_token`, `WANDB-API-KEY`, `auth.apiKey`; judged by the last word of the name and the ones before."""
    parts = [part.lower() for part in _PARTS.findall(name)]
    if not parts or parts[-1] in _ALWAYS:
        return bool(parts)
    return parts == ["token"] or (parts[-1] in _WITH_OWNER and not _OWNERS.isdisjoint(parts[-3:-1]))
