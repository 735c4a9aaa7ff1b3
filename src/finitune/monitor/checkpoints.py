"""No poisoned checkpoint: whoever writes it, a file that would hold non-finite weights is written beside the good one.

Judged are only tensors that share storage with a watched parameter or with its optimizer's state; nothing else in the
file is looked at. The file NAME that is there stays, the new one is NAME.nonfinite. Nothing is raised.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from finitune.monitor.optimizers import Optimizers
from finitune.monitor.probes.finite import norms
from finitune.monitor.probes.torch_calls import unobservable

SUFFIX = ".nonfinite"
DEPTH = 8
"""Containers within what is saved are looked through so far."""


class Checkpoints:
    """Observes `torch.save` and the writers of safetensors and of distributed checkpoints, until `leave`."""

    def __init__(
        self, optimizers: Optimizers, report: Callable[[str, list[str], bool], None],
        clean: Callable[[str, set[int], set[int]], None], *, guards: bool,
    ) -> None:  # fmt: skip
        """`report` gets what holds bad weights before it is written, `clean` of finite ones when it has been."""
        self._optimizers = optimizers
        self._report = report
        self._clean = clean
        self._finite: tuple[str, set[int]] | None = None
        self._guards = guards
        self.held_back: Path | None = None
        """A directory that takes every file that is written under a name, so that what is there stays."""
        self._originals: list[tuple[Any, str, Any]] = []
        self._replace(torch, "save", 1)
        self.observe_writers()

    def observe_writers(self) -> None:
        """Those whose modules are loaded."""
        self._observe("safetensors.torch", "save_file", 1)
        self._observe("torch.distributed.checkpoint.state_dict_saver", "save", None)
        self._observe("torch.distributed.checkpoint.state_dict_saver", "async_save", None)

    def _observe(self, module: str, name: str, place: int | None) -> None:
        """Observe this writer, where its module is loaded, under every name that it goes by in other modules.

        `place` is where its path stands among the arguments; None for `checkpoint_id` by name.
        """
        loaded = sys.modules.get(module)
        original = getattr(loaded, name, None)
        if original is None or hasattr(original, "_finitune"):
            return
        observed = self._observed(original, place)
        for other in list(sys.modules.values()):
            held = getattr(other, "__dict__", None)
            if isinstance(held, dict) and held.get(name) is original:
                self._originals.append((other, name, original))
                setattr(other, name, observed)
            alias = "safe_save_file"  # as transformers, diffusers and peft import it
            if name == "save_file" and isinstance(held, dict) and held.get(alias) is original:
                self._originals.append((other, alias, original))
                setattr(other, alias, observed)

    def leave(self) -> None:
        while self._originals:
            setattr(*self._originals.pop())

    def _replace(self, owner: Any, name: str, place: int | None) -> None:
        original = getattr(owner, name)
        self._originals.append((owner, name, original))
        setattr(owner, name, self._observed(original, place))

    def _observed(self, original: Callable[..., Any], place: int | None) -> Callable[..., Any]:
        key = {"save": "f", "save_file": "filename"}.get(original.__name__) if place else None

        @functools.wraps(original)
        def save(*args: Any, **kwargs: Any) -> Any:
            if not unobservable():
                args, kwargs = self._judged(original, args, kwargs, place, key or "checkpoint_id")
            finite, self._finite = self._finite, None
            out = original(*args, **kwargs)
            if finite is not None:
                path, weights = finite
                with suppress(Exception):
                    self._clean(path, weights, self._trained())
            return out

        vars(save)["_finitune"] = True
        return save

    def _judged(
        self, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any], place: int | None, key: str
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with another path where what is saved holds non-finite weights."""
        try:
            what = args[0] if args else next((kwargs[n] for n in ("obj", "tensors", "state_dict") if n in kwargs), None)
            positional = place is not None and len(args) > place
            path = args[place] if positional and place is not None else kwargs.get(key)
            name = os.fspath(path) if isinstance(path, str | os.PathLike) else ""
            other = self._other_name(name, what)
            if other and positional and place is not None:
                args = (*args[:place], other, *args[place + 1 :])
            elif other:
                kwargs = {**kwargs, key: other}
        except Exception:  # what cannot be judged is saved as asked
            pass
        return args, kwargs

    def _other_name(self, name: str, what: Any) -> str | None:
        """Where `what` goes instead of the file `name`; None where it goes there."""
        if self.held_back is not None and name:
            self.held_back.mkdir(parents=True, exist_ok=True)
            return str(self.held_back / Path(name).name)
        bad = self._bad(what, name)
        if not bad:
            return None
        beside = bool(name) and self._guards
        self._report(name, bad, beside)
        return f"{name}{SUFFIX}" if beside else None

    def _bad(self, what: Any, name: str) -> list[str]:
        """Names within `what` of the watched tensors that are not finite. Where all are, `_finite` is set."""
        watched = self._watched()
        if not watched:
            return []
        named = [(name, t) for name, t in _tensors(what, "", DEPTH, set()) if _storage(t) in watched]
        floating = [(name, t.detach()) for name, t in named if t.is_floating_point() and t.numel()]
        if not floating:
            return []
        finite = torch.isfinite(norms([t for _, t in floating])).tolist()
        doubtful = [entry for entry, fine in zip(floating, finite, strict=True) if not fine]
        bad = [name for name, t in doubtful if not bool(torch.isfinite(t).all())]
        if name and not bad:
            self._finite = name, {_storage(t) for _, t in floating}
        return bad

    def _trained(self) -> set[int]:
        """The storages of all that is trained."""
        return {_storage(p) for watched in self._optimizers for p in watched.parameters()}

    def _watched(self) -> set[int]:
        storages: set[int] = set()
        for watched in self._optimizers:
            optimizer = watched.optimizer()
            inner = getattr(optimizer, "optimizer", None)
            tensors: list[Any] = list(watched.parameters())
            for each in (optimizer, inner):
                tensors += [p for group in getattr(each, "param_groups", ()) for p in group.get("params", ())]
                state = getattr(each, "state", None)
                entries = state.values() if isinstance(state, dict) else ()
                tensors += [v for entry in entries if isinstance(entry, dict) for v in entry.values()]
            storages |= {_storage(t) for t in tensors if isinstance(t, Tensor)}
        return storages


def _tensors(what: Any, name: str, depth: int, seen: set[int]) -> Iterator[tuple[str, Tensor]]:
    if isinstance(what, Tensor):
        yield name, what
    elif depth and id(what) not in seen:
        seen.add(id(what))
        for key, value in _parts(what):
            yield from _tensors(value, f"{name}.{key}" if name else str(key), depth - 1, seen)


def _parts(what: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(what, nn.Module):
        return [*what.named_parameters(), *what.named_buffers()]
    if isinstance(what, dict):
        return list(what.items())
    if isinstance(what, list | tuple):
        return list(enumerate(what))
    if isinstance(what, torch.optim.Optimizer):
        return [("param_groups", what.param_groups), ("state", dict(enumerate(what.state.values())))]
    return ()


def _storage(tensor: Tensor) -> int:
    try:
        local: Any = getattr(tensor, "to_local", None)
        return (local() if local else tensor).untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):
        return -id(tensor)
