-- The reference shop: orders, what they hold, stock, and the barrier of its two participants.
-- Everything is in schema shop, so that it can share a database with the coordinator or live in another one.

create schema if not exists shop;

-- One row per order. `due_at` is what `early`, lateness and the sweep count from. Both-or-neither checks turn a blind
-- update (a cancelled order paid, a paid one cancelled) into an error instead of a silent corruption.
create table shop.orders (
    tenant text not null,
    order_id text not null,
    generation integer not null default 1,
    order_type text not null,
    status text not null default 'awaiting_payment',
    total_minor bigint not null,
    currency text not null,
    pay_deadline timestamptz not null,
    enforce_at timestamptz,
    due_at timestamptz not null generated always as (coalesce(enforce_at, pay_deadline)) stored,
    deadline_version integer not null default 1,
    version bigint not null default 1,
    placed_at timestamptz not null default clock_timestamp(),
    paid_at timestamptz,
    cancelled_at timestamptz,
    cancelled_by text,
    cancel_reason text,
    reopened_at timestamptz,
    needs_attention boolean not null default false,
    primary key (tenant, order_id),
    constraint orders_key check (btrim(tenant) <> '' and btrim(order_id) <> '' and length(order_id) <= 200),
    constraint orders_generation check (generation >= 1),
    constraint orders_status check (status in ('awaiting_payment', 'paid', 'cancelled')),
    constraint orders_paid check ((status = 'paid') = (paid_at is not null)),
    constraint orders_cancelled check (
        (status = 'cancelled') = (cancelled_at is not null)
        and (cancelled_at is null) = (cancelled_by is null)
        and (cancelled_at is null) = (cancel_reason is null)
    )
) with (fillfactor = 70);

create index orders_overdue on shop.orders (due_at, tenant, order_id)
    where status = 'awaiting_payment' and not needs_attention;

-- What an order took out of stock, one row per line. open -> released | sold; released -> open again (withdrawn), which
-- raises hold_generation. No foreign key: it would lock the order row whenever a hold is taken.
create table shop.hold (
    hold_id uuid primary key,
    tenant text not null,
    order_id text not null,
    generation integer not null,
    line integer not null,
    sku text not null,
    warehouse text not null,
    quantity numeric not null,
    state text not null default 'open',
    hold_generation integer not null default 1,
    held_at timestamptz not null default clock_timestamp(),
    constraint hold_state check (state in ('open', 'released', 'sold')),
    -- Six decimals and 15 digits before them: sums of a million rows still fit a 96-bit decimal.
    constraint hold_quantity check (quantity > 0 and quantity < 1e15 and scale(quantity) <= 6)
) with (fillfactor = 70);

create index hold_by_order on shop.hold (tenant, order_id, generation);

-- supply = available + sold + what open holds hold. Rows are never deleted. Hot rows: room for updates in place.
create table shop.stock (
    sku text not null,
    warehouse text not null,
    available numeric not null,
    sold numeric not null default 0,
    primary key (sku, warehouse),
    constraint stock_not_negative check (available >= 0 and sold >= 0)
) with (fillfactor = 30);

-- What ever came in; the audit recomputes stock from it.
create table shop.supply (
    supply_id bigint generated always as identity primary key,
    sku text not null,
    warehouse text not null,
    quantity numeric not null,
    at timestamptz not null default clock_timestamp(),
    constraint supply_quantity check (quantity > 0 and quantity < 1e15 and scale(quantity) <= 6)
);

-- What sagas gave back and took back. The primary key is the second lock on a double release, behind the barrier.
create table shop.ledger (
    hold_id uuid not null,
    hold_generation integer not null,
    direction text not null,
    quantity numeric not null,
    command_id text not null,
    at timestamptz not null default clock_timestamp(),
    primary key (hold_id, hold_generation, direction),
    constraint ledger_direction check (direction in ('release', 'withdraw'))
);

create function shop.refuse_change() returns trigger language plpgsql as $$
begin
    raise exception 'shop.% is append-only', tg_table_name using errcode = '42501';
end
$$;

create trigger ledger_append_only before update or delete or truncate on shop.ledger
    for each statement execute function shop.refuse_change();
create trigger supply_append_only before update or delete or truncate on shop.supply
    for each statement execute function shop.refuse_change();

-- One row per command that was answered finally, or whose compensation came first (blocked_by). `reply` is null only
-- inside the transaction that is doing the command, and in a blocking row.
create table shop.barrier (
    command_id text primary key,
    operation text not null,
    fingerprint bytea not null,
    reply json,
    blocked_by text,
    created_at timestamptz not null default clock_timestamp(),
    expires_at timestamptz not null
) with (fillfactor = 60);

-- Rows are written in the order in which they expire, roughly: a block range index costs next to nothing.
create index barrier_expiry on shop.barrier using brin (expires_at) with (pages_per_range = 32, autosummarize = on);

-- Order events, written in the transaction that places the order, deleted once the broker has them.
create table shop.outbox (
    outbox_id bigint generated always as identity primary key,
    key text not null,
    order_type text not null,
    due_at timestamptz not null,
    payload text not null,
    claimed_until timestamptz not null default 'epoch'
);

-- Planted faults, for demonstrations and tests: the next so many calls for this order and operation go wrong.
create table shop.fault (
    tenant text not null,
    order_id text not null,
    operation text not null,
    answer text not null,
    remaining integer not null,
    primary key (tenant, order_id, operation),
    constraint fault_answer check (answer in ('failed', 'unknown', 'unknown_applied', 'rejected', 'hang'))
);
