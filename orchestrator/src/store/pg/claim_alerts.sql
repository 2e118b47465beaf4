-- Alerts that are to be sent now; the next time is one repeat interval of the active definition ahead.
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
)
update lapse.alert as a
set sends = a.sends + 1,
  next_send_at = statement_timestamp() + repeated.repeat_ms * interval '1 millisecond'
from repeated
where a.fingerprint = repeated.fingerprint
returning a.fingerprint, a.definition, a.step, a.kind, a.class, a.message, a.sagas, a.sends, statement_timestamp() as "at!"
