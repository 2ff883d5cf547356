"""Many seeds, on as many processors as there are."""

import gc
import os
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from itertools import islice
from multiprocessing import get_context

from runfold.simulation.simulate import Outcome, simulate

CHUNK = 25  # seeds that a process plays between two words with us


def explore(seeds: range, jobs: int | None = None) -> Iterator[Outcome]:
    """The outcome of each seed, in any order. ``jobs``: processes; None: one for each processor that we may use."""
    chunks = (seeds[at : at + CHUNK] for at in range(0, len(seeds), CHUNK))
    jobs = jobs or len(os.sched_getaffinity(0))
    if jobs == 1 or len(seeds) <= CHUNK:
        yield from map(simulate, seeds)
        return
    with ProcessPoolExecutor(jobs, get_context("forkserver"), gc.freeze) as pool:
        yield from _outcomes(pool, chunks, 2 * jobs)


def _outcomes(pool: ProcessPoolExecutor, chunks: Iterator[range], ahead: int) -> Iterator[Outcome]:
    """Only a few chunks are under way, so that whoever stops asking does not wait for all."""
    waiting: list[Future[list[Outcome]]] = [pool.submit(_play, chunk) for chunk in islice(chunks, ahead)]
    while waiting:
        outcomes = waiting.pop(0).result()
        waiting.extend(pool.submit(_play, chunk) for chunk in islice(chunks, 1))
        yield from outcomes


def _play(seeds: range) -> list[Outcome]:
    return list(map(simulate, seeds))
