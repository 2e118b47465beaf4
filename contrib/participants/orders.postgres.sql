-- The orders of the examples. Yours look different; what counts is that paying them is conditional on their status, too.
create table orders (
    tenant text not null default 'default',
    order_id text not null,
    generation integer not null default 1,
    status text not null default 'awaiting_payment' check (status in ('awaiting_payment', 'paid', 'cancelled')),
    due_at timestamptz not null,
    cancelled_by text,
    needs_attention boolean not null default false,
    primary key (tenant, order_id)
);
