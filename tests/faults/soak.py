"""Plays many schedules in processes of their own."""

from __future__ import annotations

import atexit
import concurrent.futures
import contextlib
import functools
import multiprocessing
import resource
import sys
import time

from tests.faults.bench import Bench, open_bench
from tests.faults.runner import Outcome, Range

CHUNK = 50


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


@functools.cache
def open_range(kind: type[Bench] = Bench) -> Range:
    """Return the range of this process, made at the first call."""
    stack = contextlib.ExitStack()
    atexit.register(stack.close)
    return Range(stack.enter_context(open_bench(kind)))


def play(first: int, num: int, is_history: bool, kind: type[Bench]) -> Outcome:
    """Play consecutive seeds in this process."""
    home, total = open_range(kind), Outcome()
    for seed in range(first, first + num):
        total.add(home.play(home.draw(seed, is_history=is_history)))
    return total


def soak(
    first: int, num: int, jobs: int, is_history: bool = False, kind: type[Bench] = Bench
) -> Outcome:
    """Play many seeds in processes of their own and print progress."""
    total, began = Outcome(), time.monotonic()
    firsts = range(first, first + num, CHUNK)
    sizes = [min(CHUNK, first + num - one) for one in firsts]
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(jobs, spawn) as pool:
        same = ([is_history] * len(sizes), [kind] * len(sizes))
        played = pool.map(play, firsts, sizes, *same)
        for one, size, outcome in zip(firsts, sizes, played, strict=True):
            total.add(outcome)
            seconds = time.monotonic() - began
            found = len(total.problems)
            say(f"{one - first + size:6,} schedules, {seconds:.0f} s, {found} problems")
            for problem in outcome.problems:
                say(f"    {problem}")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu, wall = used.ru_utime + used.ru_stime, time.monotonic() - began
    say(f"{num:,} schedules in {wall:.0f} s, {cpu:.0f} CPU s, {jobs} processes")
    return total
