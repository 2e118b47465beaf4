-- Stores sagas whose keys are stored already, each with its first history entry. No joins: rows go in as they come.
with stored as (
  insert into lapse.saga (
    day, saga_id, version, definition, definition_hash, tenant, business_key, generation, order_type, cause, run, state,
    step, direction, phase, attempt, wake_at, due_at, body, history_seq, history_hash, created_at, updated_at
  )
  select
    t.day, t.saga_id, 1, t.definition, t.definition_hash, t.tenant, t.business_key, t.generation, t.order_type, t.cause, 1,
    'running', t.step, t.direction, t.phase, t.attempt, t.wake_at, t.due_at, t.body::json, 1, t.hash,
    statement_timestamp(), statement_timestamp()
  from unnest(
    $1::uuid[], $2::date[], $3::text[], $4::text[], $5::text[], $6::text[], $7::integer[], $8::text[], $9::text[],
    $10::text[], $11::text[], $12::text[], $13::integer[], $14::timestamptz[], $15::timestamptz[], $16::text[],
    $17::bytea[]
  ) as t (
    saga_id, day, definition, definition_hash, tenant, business_key, generation, order_type, cause,
    step, direction, phase, attempt, wake_at, due_at, body, hash
  )
)
insert into lapse.history (day, saga_id, seq, entry, hash, at)
select t.day, t.saga_id, 1, t.entry, t.hash, statement_timestamp()
from unnest($1::uuid[], $2::date[], $17::bytea[], $18::text[]) as t (saga_id, day, hash, entry)
