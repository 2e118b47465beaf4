-- An outbox for PostgreSQL 13 and newer: order events that are written in the transaction that places the order, so that there is
-- no order without its event and no event without its order. `lapse outbox-relay` publishes the rows, or Debezium's outbox
-- event router (debezium-outbox.postgres.json), whose default columns these are. docs/producers.md says how to use it.

create table outbox (
    id uuid primary key default gen_random_uuid(),
    aggregatetype varchar(255) not null,        -- the topic: lapse.delay.15m, lapse.schedule
    aggregateid varchar(255) not null,          -- the key: the order's id
    type varchar(255) not null default 'order.placed',
    payload jsonb not null,                     -- the event
    created_at timestamptz not null default clock_timestamp()
);
-- The relay takes the oldest first.
create index outbox_created on outbox (created_at);

-- schedule_cancel('A-1001', 'normal', now() + interval '15 minutes'), in the transaction that inserts the order. An order that
-- is due 15 minutes from now may as well go to lapse.delay.15m, the fourth argument.
create function schedule_cancel(order_id text, order_type text, pay_deadline timestamptz, topic text default 'lapse.schedule')
returns uuid language sql as $$
    insert into outbox (aggregatetype, aggregateid, payload)
    values (topic, order_id, jsonb_build_object('order_id', order_id, 'order_type', order_type,
        'pay_deadline', to_char(pay_deadline at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')))
    returning id
$$;
