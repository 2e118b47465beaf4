-- Dead letters can be replayed, quarantined and discarded. Older binaries go on to insert rows: every new column has a
-- default or may be null.
alter table lapse.dead_letter
  add column state text not null default 'open',
  add column replays integer not null default 0,
  add column last_error text,
  add column resolved_by text,
  add column resolved_at timestamptz,
  add column note text,
  add column saga_id uuid,
  add column appended_at timestamptz,
  add column whole_bytes integer,
  add constraint known_dead_letter_state check (state in ('open', 'replayed', 'quarantined', 'discarded'));

-- What people look for, the newest first, and what the metrics count.
create index dead_letter_state on lapse.dead_letter (state, id);

create or replace view ops_v1.dead_letters as
select d.id, d.at, d.topic, d.partition, d."offset", d.reason, d.detail, encode(d.key, 'escape') as key,
  encode(d.value, 'escape') as value, octet_length(d.value) as value_bytes, d.headers,
  d.state, d.replays, d.last_error, d.resolved_by, d.resolved_at, d.note, d.saga_id, d.appended_at, d.whole_bytes,
  coalesce(d.whole_bytes > octet_length(d.value), octet_length(d.value) = 65536, false) as is_cut,
  d.key as raw_key, d.value as raw_value
from lapse.dead_letter as d;
comment on view ops_v1.dead_letters is
  'Records that could not become a saga. reason: a stable code. key, value: bytes that are not printable ASCII as \ooo; '
  'raw_key, raw_value: the bytes. state: open, replayed (saga_id: the saga), quarantined (replayed three times in vain), '
  'discarded. replays: how often in vain; last_error: of the last time. resolved_by, resolved_at, note: who closed it, when, '
  'why. appended_at: when the broker got it; null for those kept by an older version. is_cut: value is only the beginning '
  'of whole_bytes bytes (of unknown length for those kept by an older version); it can''t be replayed.';
