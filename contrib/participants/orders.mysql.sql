-- The orders of the examples. Yours look different; what counts is that paying them is conditional on their status, too.
create table orders (
    tenant varchar(200) not null default 'default',
    order_id varchar(200) not null,
    generation integer not null default 1,
    status varchar(20) not null default 'awaiting_payment' check (status in ('awaiting_payment', 'paid', 'cancelled')),
    due_at datetime(6) not null, -- UTC
    cancelled_by varchar(200),
    needs_attention boolean not null default false,
    primary key (tenant, order_id)
) engine = innodb character set utf8mb4 collate utf8mb4_bin;
