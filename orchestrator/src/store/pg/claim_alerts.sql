-- Alerts that are to be sent now; the next time is one repeat interval of the active definition ahead. One about a
-- participant that has been sent, and of which nobody has said anything for ten minutes, is over: it is settled and not sent.
-- And those that were sent and are settled, once, for whoever wants to know.
with due as (
  select fingerprint, definition,
    kind = 'participant_down' and sends > 0 and last_at < statement_timestamp() - interval '10 minutes' as is_over
  from lapse.alert
  where next_send_at <= statement_timestamp()
  order by next_send_at limit $1
  for update skip locked
), repeated as (
  select due.fingerprint, due.is_over, coalesce(d.alert_repeat_ms, 1800000) as repeat_ms
  from due
  left join lapse.active_definition as active on active.name = due.definition
  left join lapse.definition as d on d.hash = active.hash
), sent as (
  update lapse.alert as a
  set sends = a.sends + case when repeated.is_over then 0 else 1 end,
    state = case when repeated.is_over then 'resolved' else a.state end,
    next_send_at =
      case when not repeated.is_over then statement_timestamp() + repeated.repeat_ms * interval '1 millisecond' end,
    tell_resolved = false
  from repeated
  where a.fingerprint = repeated.fingerprint
  returning a.*
), settled as (
  select fingerprint from lapse.alert
  where tell_resolved and state = 'resolved'
  order by fingerprint limit $1
  for update skip locked
), told as (
  update lapse.alert as a
  set tell_resolved = false
  from settled
  where a.fingerprint = settled.fingerprint
  returning a.*
)
select fingerprint as "fingerprint!", definition as "definition!", step as "step!", kind as "kind!", class as "class!",
  message as "message!", sagas as "sagas!", sends as "sends!", first_at as "first_at!", state = 'resolved' as "resolved!",
  statement_timestamp() as "at!"
from (select * from sent union all select * from told) as a
