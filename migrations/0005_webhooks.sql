-- Alerts on their way to webhooks: written with the claim of the alert, kept until they are old.
create table lapse.webhook_delivery (
  id bigint generated always as identity primary key,
  -- Its name in the settings; a coordinator that has no such webhook leaves the row alone.
  webhook text not null,
  -- The header webhook-id: the same however often this is sent.
  message_id text not null,
  event text not null check (event in ('alert.raised', 'alert.resolved')),
  fingerprint text not null,
  payload text not null,
  state text not null default 'waiting' check (state in ('waiting', 'delivered', 'failed')),
  attempts integer not null default 0,
  created_at timestamptz not null,
  -- While it is being sent: when others may take it for lost.
  next_try_at timestamptz not null,
  delivered_at timestamptz,
  last_error text,
  unique (webhook, message_id)
);
create index webhook_delivery_waiting on lapse.webhook_delivery (webhook, next_try_at) where state = 'waiting';
create index webhook_delivery_settled on lapse.webhook_delivery (created_at) where state <> 'waiting';

-- Set when the last saga of an alert that had been sent is settled; cleared when the webhooks are told.
alter table lapse.alert add column tell_resolved boolean not null default false;
create index alert_tell_resolved on lapse.alert (fingerprint) where tell_resolved;

create view ops_v1.webhook_deliveries as
select d.id, d.webhook, d.message_id, d.event, d.fingerprint, d.state, d.attempts, d.created_at,
  case d.state when 'waiting' then d.next_try_at end as next_try_at, d.delivered_at, d.last_error,
  case d.state when 'delivered' then null else extract(epoch from now() - d.created_at)::bigint end as undelivered_s
from lapse.webhook_delivery as d;
comment on view ops_v1.webhook_deliveries is
  'One row per alert and webhook, for 30 days. event: alert.raised (repetitions too), alert.resolved. state: waiting (tried '
  'again at next_try_at), delivered (2xx), failed (given up after 24 h, or answered 410). last_error: of the latest try that '
  'failed. undelivered_s: whole seconds since it was to be sent.';
