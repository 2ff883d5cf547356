"""What a process that was away began to do although others had taken over."""

from collections.abc import Collection

from tests.chaos.ground import Ground
from tests.chaos.ledger import Act
from tests.chaos.verdicts import Place, acts_without_lease

READ_SECONDS = 10.0  # for the watcher to read what stood in the log before it was done


async def begun_without_lease(field: Ground, name: str, pid: int, since: float, back_at: float) -> list[str]:
    """Calls and side effects of worker process ``pid`` since then, save under leases that ``name`` took after ``back_at``."""

    def places(act: Act) -> Collection[Place]:
        run_id = act.words[0].partition("/")[0]
        if act.kind == "tool":
            epochs = field.watcher.keys.get(act.words[0], [])
        else:
            epoch = field.watcher.starts.get((run_id, int(act.words[1]), int(act.words[2])))
            epochs = [] if epoch is None else [epoch]
        return [(field.partition_of(run_id), epoch) for epoch in epochs]

    acts = [act for act in field.ledger.acts("call", "tool", since=since) if act.pid == pid]
    await field.until("the starts of all acts to be read", lambda: all(map(places, acts)), READ_SECONDS)
    own = {
        (partition, lease.epoch)
        for partition, leases in field.watcher.leases.items()
        for lease in leases
        if lease.worker == name and lease.at > back_at
    }
    return acts_without_lease(acts, own, places)
