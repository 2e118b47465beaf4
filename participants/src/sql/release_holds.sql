-- Releases holds that are still as they were read, notes each in the ledger and adds the sums to stock, keys ascending.
with given as (
    select hold_id, hold_generation, command_id
    from unnest($1::uuid[], $2::integer[], $3::text[]) as moves (hold_id, hold_generation, command_id)
    order by hold_id
), released as (
    update shop.hold h
    set state = 'released'
    from given
    where h.hold_id = given.hold_id
      and h.hold_generation = given.hold_generation
      and h.state = 'open'
    returning h.hold_id, h.hold_generation, h.sku, h.warehouse, h.quantity, given.command_id
), noted as (
    insert into shop.ledger (hold_id, hold_generation, direction, quantity, command_id)
    select hold_id, hold_generation, 'release', quantity, command_id from released
), sums as materialized (
    select sku, warehouse, sum(quantity) as quantity from released group by sku, warehouse order by sku, warehouse
), restocked as (
    update shop.stock s
    set available = s.available + sums.quantity
    from sums
    where s.sku = sums.sku and s.warehouse = sums.warehouse
    returning s.sku
)
select (select count(*) from released) as "holds!", (select count(*) from restocked) as "stock_rows!"
