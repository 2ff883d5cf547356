-- What no run can show: records that could not be read.

create table unreadable_record (
    partition integer not null,
    record_offset bigint not null,
    recorded_at timestamptz not null,
    key text,
    run_id uuid,
    record_type text,
    from_owner boolean not null,
    value_bytes bigint,
    problem text not null
        check (problem in ('NULL_VALUE', 'NO_KEY', 'WRONG_KEY', 'MISROUTED', 'MALFORMED', 'UNKNOWN_SCHEMA')),
    detail text not null,
    primary key (partition, record_offset)
);
comment on table unreadable_record is
    'One row per record of the log that the projector could not read when it came to it. Nothing reads the rows: old ones may be deleted.';
comment on column unreadable_record.partition is 'Partition of the log that holds the record.';
comment on column unreadable_record.record_offset is 'Its offset there.';
comment on column unreadable_record.recorded_at is 'Broker time of the record.';
comment on column unreadable_record.key is 'Its key, cut to 500 characters, what is no UTF-8 replaced; null: it has none.';
comment on column unreadable_record.run_id is
    'The run that its key names; null: it names none. There need not be such a run.';
comment on column unreadable_record.record_type is
    'What the record says it is, by its header, cut to 500 characters; null: it does not say.';
comment on column unreadable_record.from_owner is
    'Whether it stands in the name of an owner of the partition: then an open run that it belongs to does not go on by itself.';
comment on column unreadable_record.value_bytes is 'Size of its value; null: it has none.';
comment on column unreadable_record.problem is
    'NULL_VALUE: passed over. UNKNOWN_SCHEMA: for a newer version; an open run waits for that one. All others, and UNKNOWN_SCHEMA of '
    'no such run: a copy is in the dead-letter topic; if from_owner, an open run is suspended as UNREADABLE_RECORD.';
comment on column unreadable_record.detail is 'What was expected and what came, cut to 500 characters.';

create index unreadable_record_run on unreadable_record (run_id) where run_id is not null;
create index unreadable_record_newest on unreadable_record (recorded_at desc);

comment on column run.reason is
    'Why the run is suspended or ended; machine-readable, see the contract. NEEDS_NEWER_VERSION and HISTORY_LOST are what the tables '
    'know, not the log.';
