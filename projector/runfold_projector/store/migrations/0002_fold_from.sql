-- A snapshot in the log lets a projector that starts fold an old open run from there on.

alter table run add column fold_from bigint;
update run set fold_from = first_offset;
alter table run alter column fold_from set not null;
comment on column run.fold_from is
    'Offset from which a fold of the log knows all of the run: its first one, or that of its newest snapshot.';

drop index run_open;
create index run_open on run (partition, fold_from) where finished_at is null;
