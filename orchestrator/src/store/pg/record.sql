-- Moves rows that still have the version they were loaded with. Rows come sorted by id. $1 is the first of their days, so
-- that partitions before it are not even planned for; the exact days in its place would make the planner, for want of
-- statistics, take them for 1/200 of a table that it then reads whole.
update lapse.saga as s
set version = s.version + 1,
  cause = t.cause,
  run = t.run,
  state = t.state,
  reason = t.reason,
  step = t.step,
  direction = t.direction,
  phase = t.phase,
  attempt = t.attempt,
  wake_at = t.wake_at,
  body = t.body::json,
  history_seq = t.history_seq,
  history_hash = t.history_hash,
  updated_at = coalesce($18, statement_timestamp()),
  finished_at = case when t.finished then coalesce($18, statement_timestamp()) end
from unnest(
  $2::date[], $3::uuid[], $4::bigint[], $5::text[], $6::integer[], $7::text[], $8::text[], $9::text[], $10::text[],
  $11::text[], $12::integer[], $13::timestamptz[], $14::text[], $15::integer[], $16::bytea[], $17::boolean[]
) as t (
  day, saga_id, version, cause, run, state, reason, step, direction,
  phase, attempt, wake_at, body, history_seq, history_hash, finished
)
where s.day >= $1 and s.day = t.day and s.saga_id = t.saga_id and s.version = t.version
returning s.saga_id, s.updated_at
