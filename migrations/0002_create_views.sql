-- What dashboards, the API and the command line read. Views only grow: columns are added, never renamed or removed.
create schema if not exists ops_v1;

create view ops_v1.saga_list as
select s.day, s.saga_id, s.definition, s.definition_hash, s.tenant, s.business_key as order_id, s.generation, s.order_type,
  s.cause, s.run, s.state, s.reason, s.step, s.direction, s.phase, s.attempt, s.wake_at, s.due_at, s.created_at,
  s.updated_at, s.finished_at,
  (extract(epoch from s.finished_at - s.due_at) * 1000)::bigint as lateness_ms,
  s.version, s.history_seq
from lapse.saga as s;
comment on view ops_v1.saga_list is
  'One row per saga. day: UTC day of creation, part of the key (name it in every query). state: running, compensating, '
  'completed, skipped, compensated, parked, resolved. reason: why it was skipped, or the failure. step, direction (do, undo), '
  'phase (retrying, postponed, deferred, taken, sent), attempt (from 1), wake_at: of the open step that is looked at first; '
  'null at rest. lateness_ms: from the due time to the end. Newest first: order by day desc, saga_id desc.';

create view ops_v1.saga_order as
select k.business_key as order_id, k.tenant, k.generation, k.definition, k.day, k.saga_id
from lapse.saga_key as k;
comment on view ops_v1.saga_order is
  'The saga of an order: one row per order_id, tenant, generation and definition; outlives the saga itself.';

create view ops_v1.saga_timeline as
select h.day, h.saga_id, h.seq, h.at, h.entry::json ->> 'kind' as kind, h.entry::json ->> 'step' as step,
  h.entry::json ->> 'direction' as direction, (h.entry::json ->> 'attempt')::integer as attempt,
  h.entry::json ->> 'state' as state, h.entry::json -> 'detail' as detail, encode(h.hash, 'hex') as hash
from lapse.history as h;
comment on view ops_v1.saga_timeline is
  'What happened to a saga, seq from 1 without gaps. kind: started, replied, postponed, timed_out, taken_over, deferred, cause_raised, '
  'retried, resolved. state: the saga''s afterwards. detail: the outcome and its words; of started: the event. hash: sha256 '
  'over the previous hash and the stored text, hex.';

create view ops_v1.overdue as
select s.day, s.saga_id, s.definition, s.tenant, s.business_key as order_id, s.generation, s.order_type, s.state, s.step,
  s.phase, s.attempt, s.wake_at, s.due_at, extract(epoch from now() - s.due_at)::bigint as overdue_s
from lapse.saga as s
where s.wake_at is not null and s.due_at < now() - interval '30 seconds'
  and not (s.phase = 'postponed' and s.wake_at > now());
comment on view ops_v1.overdue is
  'Live sagas whose order fell due more than 30 s ago. Sagas that wait for an order''s moved deadline are left out. '
  'overdue_s: whole seconds since the due time.';

create view ops_v1.alerts as
select a.fingerprint, a.definition, a.step, a.kind, a.class, a.message, a.state, a.sagas, a.sends, a.first_at, a.last_at,
  a.next_send_at, a.acknowledged_by, a.acknowledged_at
from lapse.alert as a;
comment on view ops_v1.alerts is
  'One row per definition, step, kind (compensated, parked, continued, unresolved) and error class. state: open (sent again '
  'at next_send_at), acknowledged, resolved. message: the latest saga''s. sagas: how many it stands for now.';

create view ops_v1.alert_sagas as
select m.fingerprint, m.saga_id, m.at, m.settled_at
from lapse.alert_member as m;
comment on view ops_v1.alert_sagas is
  'The sagas an alert stands for; settled_at: when an operator had retried or resolved the saga.';

create view ops_v1.throughput_minute as
select r.minute, r.definition, r.order_type, r.counter, sum(r.n)::bigint as n
from lapse.rollup_minute as r
group by r.minute, r.definition, r.order_type, r.counter;
comment on view ops_v1.throughput_minute is
  'Counters by minute (UTC). counter: started, duplicate, completed, skipped, compensated, parked, resumed, resolved, '
  'retried, taken_over, postponed, stale_reply, dead_letter, dropped_paid. order_type is empty where none is known.';

create view ops_v1.dead_letters as
select d.id, d.at, d.topic, d.partition, d."offset", d.reason, d.detail, encode(d.key, 'escape') as key,
  encode(d.value, 'escape') as value, octet_length(d.value) as value_bytes, d.headers
from lapse.dead_letter as d;
comment on view ops_v1.dead_letters is
  'Records that could not become a saga. reason: a stable code. key, value: bytes that are not printable ASCII as \ooo; the '
  'first 64 KiB.';

create view ops_v1.backlog as
select
  coalesce((select extract(epoch from now() - min(s.wake_at)) from lapse.saga as s where s.wake_at < now()), 0)::bigint
    as oldest_wake_s,
  coalesce((select max(o.overdue_s) from ops_v1.overdue as o), 0) as oldest_overdue_s,
  coalesce((select extract(epoch from now() - b.created_at) from lapse.outbox as b order by b.id limit 1), 0)::bigint
    as oldest_outbox_s;
comment on view ops_v1.backlog is
  'One row: how far Lapse is behind, in whole seconds. oldest_wake_s: the live saga that should have been looked at first; '
  'oldest_overdue_s: as in overdue; oldest_outbox_s: the oldest message not produced yet.';
