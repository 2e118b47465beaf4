-- The coordinator's tables. Everything that is decided is a row here; Kafka holds only timers and messages.
-- Words are those of the code; times are timestamptz, UTC in spirit; hashes are SHA-256.
create schema if not exists lapse;

-- One row for ever per tenant, definition, business key and generation: what makes a second start a duplicate.
-- Unpartitioned, so that it outlives the partitions of sagas and history. The business key leads, because people ask by it.
create table lapse.saga_key (
  business_key text not null,
  tenant text not null,
  definition text not null,
  generation integer not null,
  day date not null,
  saga_id uuid not null,
  primary key (business_key, tenant, definition, generation)
);

-- One row per saga, live or at rest. `day` is the UTC day of the time inside the id (UUID version 7).
-- `body` is the state as the state machine knows it; the columns beside it are extracts of it for indexes and views.
-- json and not jsonb: it is written and read whole, and parsing it twice buys nothing.
create table lapse.saga (
  day date not null,
  saga_id uuid not null,
  version bigint not null,
  definition text not null,
  definition_hash text not null,
  tenant text not null,
  business_key text not null,
  generation integer not null,
  order_type text not null,
  cause text not null,
  run integer not null,
  state text not null,
  reason text,
  step text,
  direction text,
  phase text,
  attempt integer,
  wake_at timestamptz,
  due_at timestamptz,
  body json not null,
  history_seq integer not null,
  history_hash bytea not null,
  created_at timestamptz not null,
  updated_at timestamptz not null,
  finished_at timestamptz,
  primary key (day, saga_id),
  constraint known_state check (state in
    ('running', 'compensating', 'completed', 'skipped', 'compensated', 'parked', 'resolved')),
  constraint live_rows_wake_up check ((state in ('running', 'compensating')) = (wake_at is not null))
) partition by range (day);

-- The poll. Live rows are exactly those with a wake-up time.
create index saga_wake_at on lapse.saga (wake_at) where wake_at is not null;
-- What people look for among millions of completed rows.
create index saga_unusual on lapse.saga (state, saga_id) where state in ('compensating', 'compensated', 'parked', 'resolved');

-- Append-only. `entry` is the text that was hashed: hash = sha256(hash of seq - 1 || entry). The first entry holds the
-- producer's event.
create table lapse.history (
  day date not null,
  saga_id uuid not null,
  seq integer not null,
  entry text not null,
  hash bytea not null,
  at timestamptz not null,
  primary key (day, saga_id, seq)
) partition by range (day);

-- Every definition that was ever deployed. `body` is the text as it was understood when it was checked, so that a saga
-- started under older rules for definitions can still be run.
create table lapse.definition (
  hash text primary key,
  name text not null,
  version integer not null,
  text text not null,
  body json not null,
  alert_repeat_ms bigint not null,
  deployed_at timestamptz not null default now(),
  unique (name, version)
);

create table lapse.active_definition (
  name text primary key,
  hash text not null references lapse.definition
);

-- One row: the version of the set of active definitions.
create table lapse.active_set (
  only_row boolean primary key default true check (only_row),
  version bigint not null
);
insert into lapse.active_set (version) values (0);

-- One row per fingerprint of (definition, step, kind, class). `sagas` counts its members that are not settled.
create table lapse.alert (
  fingerprint text primary key,
  definition text not null,
  step text not null,
  kind text not null,
  class text not null,
  message text not null,
  state text not null check (state in ('open', 'acknowledged', 'resolved')),
  sagas bigint not null,
  sends integer not null,
  first_at timestamptz not null,
  last_at timestamptz not null,
  next_send_at timestamptz,
  acknowledged_by text,
  acknowledged_at timestamptz,
  constraint open_alerts_are_sent check ((state = 'open') = (next_send_at is not null))
);
create index alert_next_send_at on lapse.alert (next_send_at) where next_send_at is not null;

create table lapse.alert_member (
  saga_id uuid not null,
  fingerprint text not null,
  at timestamptz not null,
  settled_at timestamptz,
  primary key (saga_id, fingerprint)
);
create index alert_member_fingerprint on lapse.alert_member (fingerprint) where settled_at is null;

-- Messages to be produced; a row goes when its message has its delivery report.
create table lapse.outbox (
  id bigint generated always as identity primary key,
  topic text not null,
  key text not null,
  payload text not null,
  created_at timestamptz not null default now(),
  claimed_until timestamptz not null default '-infinity'
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);

-- Records that could not become a saga. The digest is over key and value: after a topic was deleted and made anew, the
-- same offset holds another record.
create table lapse.dead_letter (
  id bigint generated always as identity primary key,
  topic text not null,
  partition integer not null,
  "offset" bigint not null,
  digest bytea not null,
  key bytea,
  value bytea,
  headers json not null,
  reason text not null,
  detail text not null,
  at timestamptz not null default now(),
  unique (topic, partition, "offset", digest)
);

-- Replies that changed nothing.
create table lapse.stale_reply (
  id bigint generated always as identity primary key,
  saga_id uuid not null,
  step text not null,
  attempt integer not null,
  outcome text not null,
  why text not null,
  at timestamptz not null default now()
);
create index stale_reply_saga_id on lapse.stale_reply (saga_id);

-- Counters by minute. One set of rows per writing connection (its backend's process id), so that no two transactions
-- ever wait for each other here; readers add them up.
create table lapse.rollup_minute (
  minute timestamptz not null,
  definition text not null,
  order_type text not null,
  counter text not null,
  writer integer not null,
  n bigint not null,
  primary key (minute, definition, order_type, counter, writer)
) with (fillfactor = 50);

-- Makes the partitions of `days` days from `first` on, where they are missing; returns how many it made. Any number of
-- callers at once. Attaching takes a lock that reads and writes don't wait for; `create … partition of` would not.
create function lapse.ensure_partitions(first date, days integer) returns integer
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  the_day date;
  parent text;
  child text;
  made integer := 0;
begin
  perform pg_advisory_xact_lock(hashtextextended('lapse.ensure_partitions', 0));
  for the_day in select first + n from generate_series(0, days - 1) as n loop
    foreach parent in array array['saga', 'history'] loop
      child := parent || '_' || to_char(the_day, 'YYYYMMDD');
      continue when to_regclass('lapse.' || quote_ident(child)) is not null;
      execute format('create table lapse.%I (like lapse.%I including all) with (fillfactor = %s)',
        child, parent, case parent when 'saga' then 70 else 100 end);
      execute format('alter table lapse.%I attach partition lapse.%I for values from (%L) to (%L)',
        parent, child, the_day, the_day + 1);
      made := made + 1;
    end loop;
  end loop;
  return made;
end $$;
