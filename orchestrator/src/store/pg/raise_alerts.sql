-- $1, $2: members, each once; $3 to $8: their alerts, each once, sorted by fingerprint. A saga that is a member already
-- changes nothing; a new member opens the alert again, whatever became of it, and then it is sent at once.
with joined as (
  insert into lapse.alert_member as m (saga_id, fingerprint, at)
  select t.saga_id, t.fingerprint, $9 from unnest($1::uuid[], $2::text[]) as t (saga_id, fingerprint)
  on conflict (saga_id, fingerprint) do update set at = excluded.at, settled_at = null where m.settled_at is not null
  returning fingerprint
), counted as (
  select fingerprint, count(*) as n from joined group by fingerprint
)
insert into lapse.alert as a
  (fingerprint, definition, step, kind, class, message, state, sagas, sends, first_at, last_at, next_send_at)
select t.fingerprint, t.definition, t.step, t.kind, t.class, t.message, 'open', c.n, 0, $9, $9, $9
from unnest($3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[])
  as t (fingerprint, definition, step, kind, class, message)
join counted as c using (fingerprint)
order by t.fingerprint
on conflict (fingerprint) do update
set message = excluded.message,
  sagas = a.sagas + excluded.sagas,
  last_at = excluded.last_at,
  state = 'open',
  tell_resolved = false,
  next_send_at = coalesce(a.next_send_at, excluded.next_send_at),
  acknowledged_by = null,
  acknowledged_at = null
