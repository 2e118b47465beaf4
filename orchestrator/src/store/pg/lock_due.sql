-- Live rows past their wake-up time, earliest first, without those that somebody else has locked.
select s.saga_id, s.version, s.definition, s.definition_hash, s.tenant, s.business_key, s.generation, s.order_type, s.due_at,
  s.body::text as "body!", s.history_seq, s.history_hash
from lapse.saga as s
where s.wake_at <= statement_timestamp()
order by s.wake_at
limit $1
for update of s skip locked
