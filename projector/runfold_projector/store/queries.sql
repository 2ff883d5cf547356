-- Every statement of the store but the migrations, by name. A statement that writes rows takes any number of them as one
-- JSON array of objects, and says which fields it takes and of which type.

-- name: positions
-- low: where a fold must begin to know all open runs of the partition. waiting: for a newer version than that which wrote the tables.
select
    o.partition,
    o.next_offset,
    o.lease_epoch,
    o.lease_worker,
    o.last_record_at,
    (select min(r.fold_from) from run r where r.partition = o.partition and r.finished_at is null) as low,
    array(
        select r.id::text from run r
        where r.partition = o.partition and r.finished_at is null and r.reason = 'NEEDS_NEWER_VERSION'
    ) as waiting
from projection_offset o
where o.topic = %(topic)s
order by o.partition;

-- name: add_positions
insert into projection_offset (topic, partition)
select %(topic)s, generate_series(0, %(partitions)s - 1)
on conflict do nothing;

-- name: other_topic
select topic from projection_offset where topic <> %(topic)s limit 1;

-- name: move
-- Moves partitions on, each from where the writer found it: one that somebody else moved meanwhile stays, and is not counted.
update projection_offset
set
    next_offset = new.next_offset,
    lease_epoch = new.lease_epoch,
    lease_worker = new.lease_worker,
    last_record_at = new.last_record_at,
    updated_at = now()
from json_to_recordset(%(rows)s) as new (
    partition int, found bigint, next_offset bigint, lease_epoch bigint, lease_worker text, last_record_at timestamptz
)
where
    projection_offset.topic = %(topic)s
    and projection_offset.partition = new.partition
    and projection_offset.next_offset = new.found;

-- name: insert_runs
-- The first run of an id has the row; a later one, which only a log without its beginning can show, has none.
insert into run (
    id, agent, tenant, status, reason, detail, waiting_tool_use_id, retry_at, input, output, metadata, model, agent_hash,
    requested_at, started_at, finished_at, last_progress_at, deadline, token_budget, cost_ceiling_usd, timeout_ms, max_steps,
    progress_timeout_ms, steps, input_tokens, output_tokens, cache_write_5m_tokens, cache_write_1h_tokens, cache_read_tokens,
    total_tokens, wasted_tokens, cost_usd, request_digest, partition, first_offset, last_offset, fold_from, on_budget,
    wasted_cost_usd, unsettled_tokens, unsettled_cost_usd
)
select * from json_to_recordset(%(rows)s) as new (
    id uuid, agent text, tenant text, status text, reason text, detail text, waiting_tool_use_id text, retry_at timestamptz,
    input text, output text, metadata jsonb, model text, agent_hash text, requested_at timestamptz, started_at timestamptz,
    finished_at timestamptz, last_progress_at timestamptz, deadline timestamptz, token_budget bigint,
    cost_ceiling_usd numeric, timeout_ms bigint, max_steps bigint, progress_timeout_ms bigint, steps bigint,
    input_tokens bigint, output_tokens bigint, cache_write_5m_tokens bigint, cache_write_1h_tokens bigint,
    cache_read_tokens bigint, total_tokens bigint, wasted_tokens bigint, cost_usd numeric, request_digest text,
    partition int, first_offset bigint, last_offset bigint, fold_from bigint, on_budget text, wasted_cost_usd numeric,
    unsettled_tokens bigint, unsettled_cost_usd numeric
)
on conflict (id) do nothing;

-- name: update_runs
-- Never back, never after the end. What a run waits for a newer version with is no record that this one counts: a row is moved into
-- that state where it stands at the same record or before, and out of it in any case, for only a newer version says so.
-- A run that was taken for lost is not, once its owner has written of it; commands, which are no progress, anybody may write.
update run
set
    status = new.status,
    reason = new.reason,
    detail = new.detail,
    waiting_tool_use_id = new.waiting_tool_use_id,
    retry_at = new.retry_at,
    output = new.output,
    model = new.model,
    agent_hash = new.agent_hash,
    started_at = new.started_at,
    finished_at = new.finished_at,
    last_progress_at = new.last_progress_at,
    deadline = new.deadline,
    token_budget = new.token_budget,
    cost_ceiling_usd = new.cost_ceiling_usd,
    max_steps = new.max_steps,
    steps = new.steps,
    input_tokens = new.input_tokens,
    output_tokens = new.output_tokens,
    cache_write_5m_tokens = new.cache_write_5m_tokens,
    cache_write_1h_tokens = new.cache_write_1h_tokens,
    cache_read_tokens = new.cache_read_tokens,
    total_tokens = new.total_tokens,
    wasted_tokens = new.wasted_tokens,
    cost_usd = new.cost_usd,
    wasted_cost_usd = new.wasted_cost_usd,
    unsettled_tokens = new.unsettled_tokens,
    unsettled_cost_usd = new.unsettled_cost_usd,
    last_offset = new.last_offset,
    fold_from = new.fold_from
from json_to_recordset(%(rows)s) as new (
    id uuid, status text, reason text, detail text, waiting_tool_use_id text, retry_at timestamptz, output text, model text,
    agent_hash text, started_at timestamptz, finished_at timestamptz, last_progress_at timestamptz, deadline timestamptz,
    token_budget bigint, cost_ceiling_usd numeric, max_steps bigint, steps bigint, input_tokens bigint, output_tokens bigint,
    cache_write_5m_tokens bigint, cache_write_1h_tokens bigint, cache_read_tokens bigint, total_tokens bigint,
    wasted_tokens bigint, cost_usd numeric, wasted_cost_usd numeric, unsettled_tokens bigint, unsettled_cost_usd numeric,
    first_offset bigint, last_offset bigint, fold_from bigint
)
where
    run.id = new.id
    and run.first_offset = new.first_offset
    and (
        (run.last_offset, run.fold_from) < (new.last_offset, new.fold_from)
        or new.reason = 'NEEDS_NEWER_VERSION' and (run.last_offset, run.fold_from) = (new.last_offset, new.fold_from)
        or run.reason = 'NEEDS_NEWER_VERSION' and new.reason is distinct from 'NEEDS_NEWER_VERSION'
    )
    and run.finished_at is null
    and (run.reason is distinct from 'HISTORY_LOST' or run.last_progress_at < new.last_progress_at);

-- name: suspend_lost
-- The tables alone know of such a run: no owner can fold it, so no record will ever end it.
update run
set
    status = 'SUSPENDED',
    reason = 'HISTORY_LOST',
    detail = format(
        'its records begin at offset %%s of partition %%s, the log at %%s, and no snapshot covers them: it cannot go on',
        run.fold_from, run.partition, log.begins
    ),
    waiting_tool_use_id = null,
    retry_at = null
from json_to_recordset(%(rows)s) as log (partition int, begins bigint)
where
    run.partition = log.partition
    and run.fold_from < log.begins
    and run.finished_at is null
    and run.reason is distinct from 'HISTORY_LOST';

-- name: start_steps
-- A start clears what the attempt before left.
insert into run_step (
    run_id, seq, kind, status, attempt, failures, model, tool, tool_use_id, model_seq, idempotency_key, side_effect, worker,
    started_at, started_offset, last_offset, wasted_tokens, wasted_cost_usd
)
select
    new.run_id, new.seq, new.kind, 'STARTED', new.attempt, new.failures, new.model, new.tool, new.tool_use_id, new.model_seq,
    new.idempotency_key, new.side_effect, new.worker, new.started_at, new.started_offset, new.started_offset,
    new.wasted_tokens, new.wasted_cost_usd
from json_to_recordset(%(rows)s) as new (
    run_id uuid, seq bigint, run_first_offset bigint, kind text, attempt bigint, failures bigint, model text, tool text,
    tool_use_id text, model_seq bigint, idempotency_key text, side_effect text, worker text, started_at timestamptz,
    started_offset bigint, wasted_tokens bigint, wasted_cost_usd numeric
)
join run on run.id = new.run_id and run.first_offset = new.run_first_offset
on conflict (run_id, seq) do update
set
    kind = excluded.kind,
    status = excluded.status,
    attempt = excluded.attempt,
    failures = excluded.failures,
    model = excluded.model,
    stop_reason = null,
    model_seq = excluded.model_seq,
    tool = excluded.tool,
    tool_use_id = excluded.tool_use_id,
    idempotency_key = excluded.idempotency_key,
    side_effect = excluded.side_effect,
    input_tokens = null,
    output_tokens = null,
    cache_write_5m_tokens = null,
    cache_write_1h_tokens = null,
    cache_read_tokens = null,
    cost_usd = null,
    modifiers = null,
    wasted_tokens = excluded.wasted_tokens,
    wasted_cost_usd = excluded.wasted_cost_usd,
    latency_ms = null,
    error_reason = null,
    error_type = null,
    error_message = null,
    http_status = null,
    request_id = null,
    worker = excluded.worker,
    started_at = excluded.started_at,
    finished_at = null,
    started_offset = excluded.started_offset,
    finished_offset = null,
    last_offset = excluded.last_offset
where run_step.last_offset < excluded.last_offset;

-- name: end_steps
-- Where an end says nothing of a column, the start's value stays.
update run_step
set
    status = new.status,
    failures = coalesce(new.failures, run_step.failures),
    model = coalesce(new.model, run_step.model),
    stop_reason = new.stop_reason,
    input_tokens = new.input_tokens,
    output_tokens = new.output_tokens,
    cache_write_5m_tokens = new.cache_write_5m_tokens,
    cache_write_1h_tokens = new.cache_write_1h_tokens,
    cache_read_tokens = new.cache_read_tokens,
    cost_usd = new.cost_usd,
    modifiers = new.modifiers,
    wasted_tokens = coalesce(new.wasted_tokens, run_step.wasted_tokens),
    wasted_cost_usd = case when new.wasted_tokens is null then run_step.wasted_cost_usd else new.wasted_cost_usd end,
    latency_ms = new.latency_ms,
    error_reason = new.error_reason,
    error_type = new.error_type,
    error_message = new.error_message,
    http_status = new.http_status,
    request_id = new.request_id,
    finished_at = new.finished_at,
    finished_offset = new.finished_offset,
    last_offset = new.finished_offset
from json_to_recordset(%(rows)s) as new (
    run_id uuid, seq bigint, run_first_offset bigint, status text, failures bigint, model text, stop_reason text,
    input_tokens bigint, output_tokens bigint, cache_write_5m_tokens bigint, cache_write_1h_tokens bigint,
    cache_read_tokens bigint, cost_usd numeric, latency_ms bigint, error_reason text, error_type text, error_message text,
    http_status bigint, request_id text, finished_at timestamptz, finished_offset bigint, modifiers jsonb, wasted_tokens bigint,
    wasted_cost_usd numeric
)
join run on run.id = new.run_id and run.first_offset = new.run_first_offset
where
    run_step.run_id = new.run_id
    and run_step.seq = new.seq
    and run_step.last_offset < new.finished_offset;

-- name: insert_unreadable
insert into unreadable_record (
    partition, record_offset, recorded_at, key, run_id, record_type, from_owner, value_bytes, problem, detail
)
select * from json_to_recordset(%(rows)s) as new (
    partition int, record_offset bigint, recorded_at timestamptz, key text, run_id uuid, record_type text, from_owner boolean,
    value_bytes bigint, problem text, detail text
)
on conflict do nothing;

-- name: run
select * from run where id = %(id)s;

-- name: steps
select * from run_step where run_id = %(run_id)s order by seq;

-- name: runs
select * from run;

-- name: applied
select next_offset from projection_offset where topic = %(topic)s and partition = %(partition)s;

-- name: reached
select partition, next_offset from projection_offset where topic = %(topic)s;

-- name: stalled
-- greatest() passes over nulls.
select count(*) as runs
from run
where
    finished_at is null
    and (status <> 'SUSPENDED' or reason = 'NEEDS_NEWER_VERSION')
    and greatest(last_progress_at, retry_at) < now() - make_interval(secs => %(seconds)s);
