"""A function on two ranks, each a process of its own with the device and a gloo group."""

from __future__ import annotations

import datetime as dt
import os
import tempfile
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest import mock

_QUIET = {"TORCH_CPP_LOG_LEVEL": "ERROR", "PYTHONWARNINGS": "ignore"}
TIMEOUT = 240.0
"""Seconds until a collective that the other rank does not join is an error."""


def on_two_ranks(function: Callable[..., Any], *args: Any) -> list[Any]:
    """What `function(device, rank, *args)` returns on each rank; it is found by its name in its module.

    Raises RuntimeError with the text of the first error of a rank.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload(["torch._dynamo"])  # most of what a rank takes is to import it
    with tempfile.TemporaryDirectory() as directory:
        pipes = [context.Pipe() for _ in range(2)]
        processes = [
            context.Process(target=_rank, args=(theirs, rank, directory, function, args), daemon=True)
            for rank, (_, theirs) in enumerate(pipes)
        ]
        with mock.patch.dict(os.environ, _QUIET):
            for process in processes:
                process.start()
        for _, theirs in pipes:
            theirs.close()
        try:
            return [_result(ours, rank) for rank, (ours, _) in enumerate(pipes)]
        finally:
            for process in processes:
                process.kill()
                process.join()


def _result(connection: Any, rank: int) -> Any:
    try:
        result, error = connection.recv()
    except EOFError:
        raise RuntimeError(f"rank {rank} ended without a result") from None
    if error is not None:
        raise RuntimeError(f"rank {rank}: {error}")
    return result


def _rank(connection: Any, rank: int, directory: str, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    import traceback

    import torch
    from tests.device.counting import install

    torch.set_num_threads(1)
    device = install()
    try:
        store = torch.distributed.FileStore(str(Path(directory) / "store"), 2)
        timeout = dt.timedelta(seconds=TIMEOUT)
        torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timeout)
        connection.send((function(device, rank, *args), None))
    except BaseException:
        connection.send((None, traceback.format_exc()))
