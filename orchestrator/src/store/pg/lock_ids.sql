-- These rows, locked in order of their ids. $1 is the first of their days, see record.sql.
select s.saga_id, s.version, s.definition, s.definition_hash, s.tenant, s.business_key, s.generation, s.order_type, s.due_at,
  s.body::text as "body!", s.history_seq, s.history_hash
from unnest($2::date[], $3::uuid[]) as t (day, saga_id)
join lapse.saga as s on s.day = t.day and s.saga_id = t.saga_id
where s.day >= $1
order by s.saga_id
for update of s
