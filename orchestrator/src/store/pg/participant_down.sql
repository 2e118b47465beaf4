-- $1: fingerprint; $2: participant; $3: class; $4: message; $5: sagas that wait; $6: when it was seen. The alert begins anew
-- where it was settled, and where nobody has said anything for ten minutes; it is sent at once then. What was seen before
-- it was settled is old.
insert into lapse.alert as a
  (fingerprint, definition, step, kind, class, message, state, sagas, sends, first_at, last_at, next_send_at)
values ($1, '', $2, 'participant_down', $3, $4, 'open', $5, 0, statement_timestamp(), statement_timestamp(),
  statement_timestamp())
on conflict (fingerprint) do update
set class = excluded.class,
  message = excluded.message,
  sagas = excluded.sagas,
  last_at = excluded.last_at,
  tell_resolved = false,
  (state, next_send_at, acknowledged_by, acknowledged_at) = (
    select case when is_new then 'open' else a.state end, case when is_new then excluded.next_send_at else a.next_send_at end,
      case when is_new then null else a.acknowledged_by end, case when is_new then null else a.acknowledged_at end
    from (select a.state = 'resolved' or a.last_at < excluded.last_at - interval '10 minutes' as is_new) as x
  )
where a.state <> 'resolved' or a.last_at < $6
