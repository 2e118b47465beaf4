-- One row per given saga; those whose key is new are stored with their first history entry. Rows come sorted by key.
with given as (
  select * from unnest(
    $1::uuid[], $2::date[], $3::text[], $4::text[], $5::text[], $6::text[], $7::integer[], $8::text[], $9::text[],
    $10::text[], $11::text[], $12::text[], $13::integer[], $14::timestamptz[], $15::timestamptz[], $16::text[],
    $17::text[], $18::bytea[]
  ) as t (
    saga_id, day, definition, definition_hash, tenant, business_key, generation, order_type, cause,
    step, direction, phase, attempt, wake_at, due_at, body,
    entry, hash
  )
), fresh as (
  insert into lapse.saga_key (business_key, tenant, definition, generation, day, saga_id)
  select business_key, tenant, definition, generation, day, saga_id from given
  on conflict do nothing
  returning saga_id
), stored as (
  insert into lapse.saga (
    day, saga_id, version, definition, definition_hash, tenant, business_key, generation, order_type, cause, run, state,
    step, direction, phase, attempt, wake_at, due_at, body, history_seq, history_hash, created_at, updated_at
  )
  select
    g.day, g.saga_id, 1, g.definition, g.definition_hash, g.tenant, g.business_key, g.generation, g.order_type, g.cause,
    1, 'running', g.step, g.direction, g.phase, g.attempt, g.wake_at, g.due_at, g.body::json, 1, g.hash,
    statement_timestamp(), statement_timestamp()
  from given as g join fresh using (saga_id)
  returning saga_id
), told as (
  insert into lapse.history (day, saga_id, seq, entry, hash, at)
  select g.day, g.saga_id, 1, g.entry, g.hash, statement_timestamp()
  from given as g join fresh using (saga_id)
)
select saga_id from stored
