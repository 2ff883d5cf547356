-- The projection of the log. Numbers are bigint and texts text throughout: the log has no smaller types, and a value that does not
-- fit would stop the projector. There is no check that a time is later than another: brokers' clocks may disagree.

create table projection_offset (
    topic text not null,
    partition integer not null,
    next_offset bigint not null default 0 check (next_offset >= 0),
    lease_epoch bigint not null default -1,
    lease_worker text,
    last_record_at timestamptz,
    updated_at timestamptz not null default now(),
    primary key (topic, partition)
);
comment on table projection_offset is
    'How far the tables have come in each partition of the log. Moved in the transaction that writes the rows.';
comment on column projection_offset.topic is 'The Kafka topic. One schema holds the projection of one topic.';
comment on column projection_offset.partition is 'The partition of the topic.';
comment on column projection_offset.next_offset is 'Every record before this offset is in the tables.';
comment on column projection_offset.lease_epoch is 'Offset of the newest LeaseAcquired before next_offset; -1 when there is none.';
comment on column projection_offset.lease_worker is 'The worker that this lease names: the owner of the partition at next_offset.';
comment on column projection_offset.last_record_at is 'Broker time of the last record before next_offset.';
comment on column projection_offset.updated_at is 'When the row was written, by the clock of the database.';

create table run (
    id uuid primary key,
    agent text not null,
    tenant text,
    status text not null
        check (status in ('QUEUED', 'RUNNING', 'SUSPENDED', 'SUCCEEDED', 'FAILED', 'CANCELLED', 'TIMED_OUT')),
    reason text,
    detail text not null,
    waiting_tool_use_id text,
    retry_at timestamptz,
    input text not null,
    output text not null,
    metadata jsonb,
    model text,
    agent_hash text,
    requested_at timestamptz not null,
    started_at timestamptz,
    finished_at timestamptz
        check ((finished_at is not null) = (status in ('SUCCEEDED', 'FAILED', 'CANCELLED', 'TIMED_OUT'))),
    last_progress_at timestamptz not null,
    deadline timestamptz not null,
    token_budget bigint,
    cost_ceiling_usd numeric(38, 12),
    timeout_ms bigint,
    max_steps bigint,
    progress_timeout_ms bigint,
    steps bigint not null,
    input_tokens bigint not null,
    output_tokens bigint not null,
    cache_write_5m_tokens bigint not null,
    cache_write_1h_tokens bigint not null,
    cache_read_tokens bigint not null,
    total_tokens bigint not null,
    wasted_tokens bigint not null,
    cost_usd numeric(38, 12),
    request_digest text,
    partition integer not null,
    first_offset bigint not null,
    last_offset bigint not null check (last_offset >= first_offset),
    fold_from bigint not null
) with (fillfactor = 80);
comment on table run is 'One row per run: what the fold of its records says of it.';
comment on column run.id is 'The run id: key of the run''s records in the log.';
comment on column run.agent is 'Name of the agent that was asked for, cut to 500 characters.';
comment on column run.tenant is 'On whose behalf, as the requester says, cut to 500 characters.';
comment on column run.status is
    'QUEUED, RUNNING, SUSPENDED, or for ever: SUCCEEDED, FAILED, CANCELLED, TIMED_OUT.';
comment on column run.reason is 'Why the run is suspended or ended; machine-readable, see the contract.';
comment on column run.detail is 'The same for people; empty when there is nothing to say.';
comment on column run.waiting_tool_use_id is 'The tool call that a suspended run is about.';
comment on column run.retry_at is 'When the current model step is tried again; null when it does not wait.';
comment on column run.input is 'The text the run began with. U+0000, here and everywhere, is stored as U+FFFD.';
comment on column run.output is 'Text of the last answer so far; of a succeeded run the final one.';
comment on column run.metadata is 'What the requester attached: an object of texts.';
comment on column run.model is 'Model of the agent as frozen at the start; before it, the one the request names, if any.';
comment on column run.agent_hash is 'sha256 of the agent''s definition as frozen at the start.';
comment on column run.requested_at is 'Broker time of RunRequested. All times but updated_at are the broker''s.';
comment on column run.started_at is 'Broker time of RunStarted.';
comment on column run.finished_at is 'Broker time of RunFinished; not null exactly when the status is final.';
comment on column run.last_progress_at is 'Broker time of the last record that changed the run.';
comment on column run.deadline is 'When the run ends as TIMED_OUT at the latest; frozen at the start.';
comment on column run.token_budget is 'Most tokens the run may use, total_tokens and wasted_tokens together; null: no limit. A resumption may raise it.';
comment on column run.cost_ceiling_usd is 'Most US dollars the run may cost; null: no limit. A resumption may raise it.';
comment on column run.timeout_ms is 'Milliseconds from requested_at to deadline, as requested; null: the default.';
comment on column run.max_steps is 'Most model and tool steps together; null: the default. A resumption may raise it.';
comment on column run.progress_timeout_ms is 'Milliseconds without progress after which the run is TIMED_OUT; null: no limit.';
comment on column run.steps is 'Model and tool steps begun: the highest seq.';
comment on column run.input_tokens is 'Uncached input tokens of all completed model steps.';
comment on column run.output_tokens is 'Output tokens of all completed model steps.';
comment on column run.cache_write_5m_tokens is 'Input tokens written to the 5-minute cache.';
comment on column run.cache_write_1h_tokens is 'Input tokens written to the 1-hour cache.';
comment on column run.cache_read_tokens is 'Input tokens read from the cache.';
comment on column run.total_tokens is 'Sum of the five columns before.';
comment on column run.wasted_tokens is 'Tokens of failed model calls, where known; in none of the columns before.';
comment on column run.cost_usd is 'US dollars of all completed model steps; null: not known, because a model has no known price.';
comment on column run.request_digest is 'Digest of the request, where an idempotency key made the run id.';
comment on column run.partition is 'Partition of the log that holds the run.';
comment on column run.first_offset is 'Offset of the run''s RunRequested.';
comment on column run.last_offset is 'Offset of the last record that changed the run. A row never goes back.';
comment on column run.fold_from is
    'Offset from which a fold of the log knows all of the run: its first one, or that of its newest snapshot.';

create index run_newest on run (requested_at desc, id desc);
create index run_status on run (status, requested_at desc, id desc);
create index run_agent on run (agent, requested_at desc, id desc);
create index run_tenant on run (tenant, requested_at desc, id desc) where tenant is not null;
create index run_open on run (partition, fold_from) where finished_at is null;

create table run_step (
    run_id uuid not null references run (id) on delete cascade,
    seq bigint not null,
    kind text not null check (kind in ('MODEL', 'TOOL')),
    status text not null check (status in ('STARTED', 'DONE', 'FAILED', 'ERROR', 'TIMED_OUT', 'DENIED')),
    attempt bigint not null,
    failures bigint not null,
    model text,
    stop_reason text,
    model_seq bigint,
    tool text check ((tool is not null) = (kind = 'TOOL')),
    tool_use_id text,
    idempotency_key text,
    side_effect text,
    input_tokens bigint,
    output_tokens bigint,
    cache_write_5m_tokens bigint,
    cache_write_1h_tokens bigint,
    cache_read_tokens bigint,
    cost_usd numeric(38, 12),
    latency_ms bigint,
    error_reason text,
    error_type text,
    error_message text,
    http_status bigint,
    request_id text,
    worker text,
    started_at timestamptz not null,
    finished_at timestamptz check ((finished_at is null) = (status = 'STARTED')),
    started_offset bigint not null,
    finished_offset bigint check (finished_offset > started_offset),
    last_offset bigint not null,
    primary key (run_id, seq)
) with (fillfactor = 80);
comment on table run_step is 'One row per step of a run that was begun. A step that is made again shows its latest attempt.';
comment on column run_step.run_id is 'The run.';
comment on column run_step.seq is 'Place in the run, from 1; model and tool steps share the count. A step never begun leaves a gap.';
comment on column run_step.kind is 'MODEL or TOOL.';
comment on column run_step.status is
    'STARTED: not finished, for ever when the run has ended; DONE; FAILED: model call; ERROR, TIMED_OUT, DENIED: tool call.';
comment on column run_step.attempt is 'The latest attempt, from 1; those of workers that died count.';
comment on column run_step.failures is 'Attempts of a model step that ended in an error of the call, and all before a resumption.';
comment on column run_step.model is 'The model that was asked; once it answered, the one that answered. Null for tools.';
comment on column run_step.stop_reason is 'Why the model stopped. Null for tools.';
comment on column run_step.model_seq is 'seq of the model step that asked for this tool call. Null for model steps.';
comment on column run_step.tool is 'Name of the tool. Null for model steps.';
comment on column run_step.tool_use_id is 'Id of the call, given by the model. Null for model steps.';
comment on column run_step.idempotency_key is 'What the tool gets to recognise a repetition; the same in every attempt.';
comment on column run_step.side_effect is 'What the tool does to the world: NONE, READ, WRITE or EXTERNAL.';
comment on column run_step.input_tokens is 'Uncached input tokens; null, as the next four, until the model answered.';
comment on column run_step.output_tokens is 'Output tokens.';
comment on column run_step.cache_write_5m_tokens is 'Input tokens written to the 5-minute cache.';
comment on column run_step.cache_write_1h_tokens is 'Input tokens written to the 1-hour cache.';
comment on column run_step.cache_read_tokens is 'Input tokens read from the cache.';
comment on column run_step.cost_usd is 'US dollars; null: not answered, or the model has no known price.';
comment on column run_step.latency_ms is 'Milliseconds that the call took, by the worker''s clock.';
comment on column run_step.error_reason is 'Why a model call failed; machine-readable, see the contract.';
comment on column run_step.error_type is 'The error type as the model''s API names it.';
comment on column run_step.error_message is 'What went wrong, for people: of the call, or what the tool told the model; cut to 500 characters.';
comment on column run_step.http_status is 'HTTP status of a failed model call.';
comment on column run_step.request_id is 'Id of the request at the model''s API.';
comment on column run_step.worker is 'The worker that began the latest attempt.';
comment on column run_step.started_at is 'Broker time at which the latest attempt began.';
comment on column run_step.finished_at is 'Broker time at which it ended.';
comment on column run_step.started_offset is 'Offset of the record that began it.';
comment on column run_step.finished_offset is 'Offset of the record that ended it.';
comment on column run_step.last_offset is 'The later of the two. A row never goes back.';

create view model_usage as
    select
        date_trunc('day', finished_at at time zone 'UTC')::date as day,
        model,
        count(*) as answers,
        sum(input_tokens) as input_tokens,
        sum(output_tokens) as output_tokens,
        sum(cache_write_5m_tokens + cache_write_1h_tokens) as cache_write_tokens,
        sum(cache_read_tokens) as cache_read_tokens,
        sum(cost_usd) as cost_usd,
        count(*) filter (where cost_usd is null) as answers_without_price,
        percentile_disc(0.5) within group (order by latency_ms) as latency_ms_p50,
        percentile_disc(0.99) within group (order by latency_ms) as latency_ms_p99
    from run_step
    where kind = 'MODEL' and status = 'DONE'
    group by 1, 2;
comment on view model_usage is 'Tokens, cost and latency per day (UTC) and model, over completed model steps.';
comment on column model_usage.day is 'Day in UTC on which the answers came.';
comment on column model_usage.model is 'The model that answered.';
comment on column model_usage.answers is 'Completed model steps.';
comment on column model_usage.input_tokens is 'Uncached input tokens.';
comment on column model_usage.output_tokens is 'Output tokens.';
comment on column model_usage.cache_write_tokens is 'Input tokens written to either cache.';
comment on column model_usage.cache_read_tokens is 'Input tokens read from the cache.';
comment on column model_usage.cost_usd is 'US dollars of the answers with a known price.';
comment on column model_usage.answers_without_price is 'Answers that cost_usd does not contain.';
comment on column model_usage.latency_ms_p50 is 'Median latency in milliseconds.';
comment on column model_usage.latency_ms_p99 is '99th percentile of the latency in milliseconds.';
