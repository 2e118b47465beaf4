-- Alerts that are to be sent now; the next time is one repeat interval of the active definition ahead. And those that
-- were sent and have no saga left, once, for whoever wants to know.
with due as (
  select fingerprint, definition from lapse.alert
  where next_send_at <= statement_timestamp()
  order by next_send_at limit $1
  for update skip locked
), repeated as (
  select due.fingerprint, coalesce(d.alert_repeat_ms, 1800000) as repeat_ms
  from due
  left join lapse.active_definition as active on active.name = due.definition
  left join lapse.definition as d on d.hash = active.hash
), sent as (
  update lapse.alert as a
  set sends = a.sends + 1,
    next_send_at = statement_timestamp() + repeated.repeat_ms * interval '1 millisecond',
    tell_resolved = false
  from repeated
  where a.fingerprint = repeated.fingerprint
  returning a.*
), over as (
  select fingerprint from lapse.alert
  where tell_resolved and state = 'resolved'
  order by fingerprint limit $1
  for update skip locked
), told as (
  update lapse.alert as a
  set tell_resolved = false
  from over
  where a.fingerprint = over.fingerprint
  returning a.*
)
select fingerprint as "fingerprint!", definition as "definition!", step as "step!", kind as "kind!", class as "class!",
  message as "message!", sagas as "sagas!", sends as "sends!", first_at as "first_at!", state = 'resolved' as "resolved!",
  statement_timestamp() as "at!"
from (select * from sent union all select * from told) as a
