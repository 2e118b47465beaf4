-- Takes released holds back: open again in a new hold generation, noted in the ledger, sums taken from stock.
with given as (
    select hold_id, hold_generation, command_id
    from unnest($1::uuid[], $2::integer[], $3::text[]) as moves (hold_id, hold_generation, command_id)
    order by hold_id
), withdrawn as (
    update shop.hold h
    set state = 'open', hold_generation = h.hold_generation + 1
    from given
    where h.hold_id = given.hold_id
      and h.hold_generation = given.hold_generation
      and h.state = 'released'
    returning h.hold_id, given.hold_generation, h.sku, h.warehouse, h.quantity, given.command_id
), noted as (
    insert into shop.ledger (hold_id, hold_generation, direction, quantity, command_id)
    select hold_id, hold_generation, 'withdraw', quantity, command_id from withdrawn
), sums as materialized (
    select sku, warehouse, sum(quantity) as quantity from withdrawn group by sku, warehouse order by sku, warehouse
), reduced as (
    update shop.stock s
    set available = s.available - sums.quantity
    from sums
    where s.sku = sums.sku and s.warehouse = sums.warehouse
    returning s.sku
)
select (select count(*) from withdrawn) as "holds!", (select count(*) from reduced) as "stock_rows!"
