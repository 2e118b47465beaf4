-- The row of one key.
select s.saga_id, s.version, s.definition, s.definition_hash, s.tenant, s.business_key, s.generation, s.order_type, s.due_at,
  s.body::text as "body!", s.history_seq, s.history_hash
from lapse.saga_key as k
join lapse.saga as s on s.day = k.day and s.saga_id = k.saga_id
where k.business_key = $1 and k.tenant = $2 and k.definition = $3 and k.generation = $4
for update of s
