"""A program that dies of an exception has an incident: the exception, its own frames, and the facts of the batch."""

from __future__ import annotations

import re
import sys
import threading
import traceback
from types import TracebackType

from torch.optim import lr_scheduler

from finitune.monitor.capture.crash_facts import facts_of_batch, facts_of_frames
from finitune.monitor.process import Monitor, Stopped
from finitune.monitor.statements.raising_statement import facts_of_raised
from finitune.monitor.step_places import StepPlace
from finitune.monitor.user_code.frame_variables import locals_of
from finitune.monitor.user_code.source_line import described, is_ours, is_users

LONGEST = 1000
_OUT_OF_BOUNDS = re.compile(r"is out of bounds for dimension -?\d+ with size (\d+)")
_OF_INDEX = re.compile(r"index|assert|out of (range|bounds)|accelerator|CUDA|HIP", re.IGNORECASE)
"""What an id beyond an embedding ends in, here or on a device."""
FRAMES = 12


def report_crashes(monitor: Monitor) -> None:
    """Record what ends this process by an exception, in any thread, from now on; its traceback is printed as ever."""
    before, before_thread = sys.excepthook, threading.excepthook

    def excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        before(kind, error, without_ours(error, trace))
        record_crash(monitor, error, trace)

    def thread_excepthook(args: threading.ExceptHookArgs) -> None:
        before_thread(args)
        if args.exc_value is not None:
            record_crash(monitor, args.exc_value, args.exc_traceback, thread=args.thread)

    sys.excepthook, threading.excepthook = excepthook, thread_excepthook


def without_ours(error: BaseException, trace: TracebackType | None) -> TracebackType | None:
    """The traceback, and those of the errors behind `error`, without the frames of what observes the program."""
    seen: set[int] = set()
    behind: BaseException | None = error
    while behind is not None and id(behind) not in seen:
        seen.add(id(behind))
        behind.__traceback__ = _users(behind.__traceback__)
        behind = behind.__cause__ or behind.__context__
    return _users(trace)


def _users(trace: TracebackType | None) -> TracebackType | None:
    frames: list[TracebackType] = []
    while trace is not None:
        frames.append(trace)
        trace = trace.tb_next
    for frame in reversed(frames):
        if not is_ours(frame.tb_frame.f_code.co_filename):
            frame.tb_next = trace
            trace = frame
    return trace


def vocabulary_in_question(error: BaseException, vocabulary: int | None) -> int | None:
    """None where the error is none of an index, or says the size of what was indexed, and it is another: what the ids
    are is not known.
    """
    text = f"{type(error).__name__}: {error}"
    said = _OUT_OF_BOUNDS.search(text)
    indexed = _OF_INDEX.search(text) and (said is None or int(said[1]) == vocabulary)
    return vocabulary if indexed else None


def record_crash(
    monitor: Monitor, error: BaseException, trace: TracebackType | None, thread: threading.Thread | None = None
) -> None:
    """An event of the recording and one block on stderr. A broken-off run (Ctrl-C, SystemExit) is a note."""
    if isinstance(error, Stopped):
        return
    try:
        if isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit):
            monitor.note("interrupted", text=type(error).__name__)
            return
        frames = list(traceback.walk_tb(trace))
        raised_in = [frame for frame, _ in frames]
        own = [
            described(f.f_code.co_filename, n, f.f_code.co_name) for f, n in frames if is_users(f.f_code.co_filename)
        ]
        text = f"{type(error).__name__}: {' '.join(str(error).split())[:LONGEST]}"
        monitor.crashed(
            text=text, frames=own[-FRAMES:], line=own[-1] if own else None,
            facts=[
                *facts_of_frames(raised_in),
                *facts_of_raised(frames),
                *facts_of_batch(monitor.last_calls(), vocabulary_in_question(error, monitor.vocabulary())),
            ],
            thread=thread.name if thread is not None else None,
            places=[StepPlace(frame=id(f), code=f.f_code, line=n) for f, n in frames],
            ends_step=any(isinstance(locals_of(f).get('self'), lr_scheduler.LRScheduler) for f in raised_in),
        )  # fmt: skip
    except Exception as failed:  # the user's own error has been shown already
        monitor.broken(failed)
