-- Inserts orders in the order of their keys; one that exists, or comes twice, is passed by.
insert into shop.orders (tenant, order_id, order_type, total_minor, currency, pay_deadline, enforce_at)
select tenant, order_id, order_type, total_minor, currency, pay_deadline, enforce_at
from unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::text[], $6::timestamptz[], $7::timestamptz[])
    as given (tenant, order_id, order_type, total_minor, currency, pay_deadline, enforce_at)
order by tenant, order_id
on conflict (tenant, order_id) do nothing
returning tenant, order_id, placed_at
