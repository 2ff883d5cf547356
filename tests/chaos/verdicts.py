"""What must hold whatever was done, judged from what the log holds and what processes did. Pure: each verdict has its test."""

from collections import defaultdict
from collections.abc import Callable, Collection, Container, Mapping, Sequence, Set

from runfold.core.events import RunFinished, RunSuspended, Status
from tests.chaos.figures import Report
from tests.chaos.ledger import Act

Place = tuple[int, int]  # partition, and the epoch of a lease on it


def all_succeeded(report: Report, finished: Mapping[str, RunFinished], suspended: Mapping[str, RunSuspended]) -> None:
    """Of runs that nobody cancelled, and whose model never fails."""
    bad = {id_: end for id_, end in finished.items() if end.status is not Status.SUCCEEDED}
    report.none("runs not SUCCEEDED", [f"{id_} {end.status} {end.reason} {end.detail}" for id_, end in bad.items()])
    if suspended:  # there is nothing here that one could wait for
        report.none("runs suspended", [f"{id_} {event.reason} {event.detail}" for id_, event in suspended.items()])


def no_answer_paid_twice(report: Report, calls: Sequence[Act], used: Set[str], killed: Container[int]) -> None:
    """A step is asked for again only when the process that asked first was killed before the answer was in the log.

    ``calls`` in the order of their making; ``used``: request ids of the answers in the log; ``killed``: processes.
    """
    steps: dict[tuple[str, ...], list[tuple[int, str]]] = defaultdict(list)
    for act in calls:
        run_id, seq, _, request = act.words
        steps[run_id, seq].append((act.pid, request))
    wasted = [call for made in steps.values() for call in made[:-1]]
    in_flight = sum(act.pid in killed and act.words[3] not in used for act in calls)
    report.say(f"model calls {len(calls)}, repeated {len(wasted)}, in flight at kills {in_flight}")
    report.wants(f"at most {in_flight} repeated calls, got {len(wasted)}", len(wasted) <= in_flight)
    report.none("answers in the log and asked for again", [request for _, request in wasted if request in used])
    report.none("repeated without a kill", [f"{request} of {pid}" for pid, request in wasted if pid not in killed])


def acts_without_lease(
    acts: Sequence[Act],
    own: Collection[Place],
    places: Callable[[Act], Collection[Place]],
) -> list[str]:
    """Model calls and side effects of a process whose leases from before are lost.

    ``own``: the leases that it has taken since; ``places``: the leases under which the start of an act stands in the log.
    """
    under = [(act, places(act)) for act in acts]
    return [f"{act.kind} {' '.join(act.words)} of {found}" for act, found in under if not any(place in own for place in found)]
