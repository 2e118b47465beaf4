-- Sells the open holds of these orders and adds their sums to what is sold, keys ascending.
with sold as (
    update shop.hold h
    set state = 'sold'
    from unnest($1::text[], $2::text[], $3::integer[]) as paid (tenant, order_id, generation)
    where h.tenant = paid.tenant
      and h.order_id = paid.order_id
      and h.generation = paid.generation
      and h.state = 'open'
    returning h.sku, h.warehouse, h.quantity
), sums as materialized (
    select sku, warehouse, sum(quantity) as quantity from sold group by sku, warehouse order by sku, warehouse
)
update shop.stock s
set sold = s.sold + sums.quantity
from sums
where s.sku = sums.sku and s.warehouse = sums.warehouse
