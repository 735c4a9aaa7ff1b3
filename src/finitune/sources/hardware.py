"""The name of an accelerator -> Hardware."""

from __future__ import annotations

import dataclasses
import difflib
import re
import shutil
import subprocess

from packaging.specifiers import SpecifierSet

from finitune.facts import Hardware
from finitune.finding import UnreadableInput

# bfloat16 needs compute capability 8.0 (Ampere). Memory in GiB of the commonest variant.
KNOWN = {
    "P100": (False, 16), "V100": (False, 32), "T4": (False, 16), "RTX 2080 Ti": (False, 11), "RTX 8000": (False, 48),
    "Titan RTX": (False, 24), "GTX 1080 Ti": (False, 11),
    "A10": (True, 24), "A10G": (True, 24), "A16": (True, 16), "A30": (True, 24), "A40": (True, 48), "A100": (True, 80),
    "A800": (True, 80), "RTX A4000": (True, 16), "RTX A5000": (True, 24), "RTX A6000": (True, 48),
    "RTX 3060": (True, 12), "RTX 3080": (True, 10), "RTX 3090": (True, 24),
    "L4": (True, 24), "L40": (True, 48), "L40S": (True, 48), "RTX 6000 Ada": (True, 48),
    "RTX 4070": (True, 12), "RTX 4080": (True, 16), "RTX 4090": (True, 24),
    "RTX 5080": (True, 16), "RTX 5090": (True, 32),
    "H20": (True, 96), "H100": (True, 80), "H800": (True, 80), "H200": (True, 141), "GH200": (True, 96),
    "B200": (True, 180), "GB200": (True, 186), "MI250": (True, 128), "MI300X": (True, 192),
}  # fmt: skip
"""Name -> (computes in bfloat16, GiB). Source: the vendors' data sheets."""

EMULATES = SpecifierSet(">=2.3")
"""Releases of torch whose `torch.cuda.is_bf16_supported()` asks whether a tensor can be made, which every card can."""

MAX_SECONDS = 10.0
"""A driver that hangs answers nobody."""

# Words of a full product name that do not tell one card from another.
_NOISE = re.compile(
    r"nvidia|amd|tesla|geforce|quadro|instinct|rtx|gtx|pcie|sxm\d?|nvl|hbm\d?e?|\d{1,4}\s{0,3}gi?b\b|[^a-z0-9]"
)


def read(name: str) -> Hardware:
    """The card of that name, in any spelling: "v100", "NVIDIA A100-SXM4-80GB", "2080ti".

    Raises UnreadableInput for a name that is not known, with the nearest ones.
    """
    by_key = {_key(known): known for known in KNOWN}
    found = by_key.get(_key(name))
    if found is None:
        near = [by_key[key] for key in difflib.get_close_matches(_key(name), list(by_key), n=1, cutoff=0.5)]
        hint = f"did you mean {near[0]}? " if near else ""
        raise UnreadableInput(
            f"--gpu {name!r}: not a card that is known here ({hint}expected one of {', '.join(KNOWN)})"
        )
    bfloat16, memory = KNOWN[found]
    said = re.search(r"(\d+)\s*gi?b\b", name.lower())
    return Hardware(name=found, bfloat16=bfloat16, memory_gib=float(said[1]) if said else float(memory))


def under(card: Hardware, torch: str | None) -> Hardware:
    """The card, as this release of torch speaks of it."""
    emulated = torch is not None and not card.bfloat16 and EMULATES.contains(torch, prereleases=True)
    return dataclasses.replace(card, emulated=emulated)


def of_this_machine() -> Hardware | None:
    """The first card of this machine that is known, by `nvidia-smi`; None where there is none."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    try:
        said = subprocess.run(
            [program, "--query-gpu=name", "--format=csv,noheader"],
            capture_output=True, text=True, timeout=MAX_SECONDS, check=False, errors="replace",
        ).stdout  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    for name in said.splitlines():
        try:
            return read(name)
        except UnreadableInput:
            continue
    return None


def _key(name: str) -> str:
    return _NOISE.sub("", name.lower())
