-- What was paid for without an answer, what an answer's price depends on, and spend by who caused it.

alter table run
    add column on_budget text not null default 'SUSPEND',
    add column wasted_cost_usd numeric(38, 12) default 0,
    add column unsettled_tokens bigint not null default 0,
    add column unsettled_cost_usd numeric(38, 12) default 0;
comment on column run.on_budget is 'What becomes of the run at token_budget or cost_ceiling_usd: SUSPEND or FAIL.';
comment on column run.token_budget is
    'Most tokens the run may use: total_tokens, wasted_tokens and unsettled_tokens together; null: no limit. A resumption may raise it.';
comment on column run.cost_ceiling_usd is
    'Most US dollars the run may cost: the three _cost columns together; null: no limit. A resumption may raise it.';
comment on column run.wasted_cost_usd is 'US dollars of wasted_tokens; null: not known. Not in cost_usd.';
comment on column run.unsettled_tokens is
    'Tokens that calls may have used at most whose end nobody heard: their worker died, or their stream broke. In no other column.';
comment on column run.unsettled_cost_usd is 'US dollars that these calls may have cost at most; null: not known.';

alter table run_step
    add column modifiers jsonb,
    add column wasted_tokens bigint not null default 0,
    add column wasted_cost_usd numeric(38, 12) default 0;
comment on column run_step.modifiers is
    'What the cost depends on beside the tokens, as the model''s API reported it: service_tier, speed, inference_geo and the like.';
comment on column run_step.wasted_tokens is
    'Tokens of the failed attempts of this step, where known; in none of the token columns. A new attempt leaves them.';
comment on column run_step.wasted_cost_usd is 'US dollars of wasted_tokens; null: not known. Not in cost_usd.';

create view spend as
    select
        run.tenant,
        run.agent,
        run_step.model,
        date_trunc('day', coalesce(run_step.finished_at, run_step.started_at) at time zone 'UTC')::date as day,
        count(distinct run.id) as runs,
        count(*) filter (where run_step.status = 'DONE') as answers,
        coalesce(sum(run_step.input_tokens), 0) as input_tokens,
        coalesce(sum(run_step.output_tokens), 0) as output_tokens,
        coalesce(sum(run_step.cache_write_5m_tokens), 0) as cache_write_5m_tokens,
        coalesce(sum(run_step.cache_write_1h_tokens), 0) as cache_write_1h_tokens,
        coalesce(sum(run_step.cache_read_tokens), 0) as cache_read_tokens,
        sum(run_step.cost_usd) as cost_usd,
        count(*) filter (where run_step.status = 'DONE' and run_step.cost_usd is null) as answers_without_price,
        sum(run_step.wasted_tokens) as wasted_tokens,
        sum(run_step.wasted_cost_usd) as wasted_cost_usd,
        count(*) filter (where run_step.wasted_cost_usd is null) as wastes_without_price
    from run_step
    join run on run.id = run_step.run_id
    where run_step.kind = 'MODEL' and (run_step.status = 'DONE' or run_step.wasted_tokens > 0)
    group by 1, 2, 3, 4;
comment on view spend is 'Tokens and cost of model steps by tenant, agent, model and day (UTC). Sums over any rows of it add up, but for runs.';
comment on column spend.tenant is 'On whose behalf; null: the requester named nobody.';
comment on column spend.agent is 'The agent that was asked for.';
comment on column spend.model is 'The model that answered; of steps that have no answer, the one that was asked.';
comment on column spend.day is 'Day in UTC on which the answer came, or the last attempt ended; where that is not known, began.';
comment on column spend.runs is 'Runs with such steps. A run that spans days or models is counted in each.';
comment on column spend.answers is 'Completed model steps.';
comment on column spend.input_tokens is 'Uncached input tokens of the answers.';
comment on column spend.output_tokens is 'Output tokens of the answers.';
comment on column spend.cache_write_5m_tokens is 'Input tokens of the answers written to the 5-minute cache.';
comment on column spend.cache_write_1h_tokens is 'Input tokens of the answers written to the 1-hour cache.';
comment on column spend.cache_read_tokens is 'Input tokens of the answers read from the cache.';
comment on column spend.cost_usd is 'US dollars of the answers with a known price; null: none has one.';
comment on column spend.answers_without_price is 'Answers that cost_usd does not contain.';
comment on column spend.wasted_tokens is 'Tokens of failed attempts of these steps, where known; in none of the columns before.';
comment on column spend.wasted_cost_usd is 'US dollars of these, where there is a known price.';
comment on column spend.wastes_without_price is 'Steps whose wasted tokens wasted_cost_usd does not contain.';
