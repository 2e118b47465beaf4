-- Ends the memberships of these sagas; an alert without members is resolved.
with ended as (
  update lapse.alert_member set settled_at = $2
  where saga_id = any($1) and settled_at is null
  returning fingerprint
), counted as (
  select fingerprint, count(*) as n from ended group by fingerprint order by fingerprint
)
update lapse.alert as a
set sagas = a.sagas - c.n,
  state = case when a.sagas <= c.n then 'resolved' else a.state end,
  tell_resolved = a.tell_resolved or (a.sagas <= c.n and a.sends > 0),
  next_send_at = case when a.sagas <= c.n then null else a.next_send_at end
from counted as c
where a.fingerprint = c.fingerprint
