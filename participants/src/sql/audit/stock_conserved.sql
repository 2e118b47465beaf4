-- supply = available + sold + open holds, and sold = sold holds, for every key that any of them knows.
with supplied as (
    select sku, warehouse, sum(quantity) as quantity from shop.supply group by sku, warehouse
), held as (
    select sku, warehouse,
        coalesce(sum(quantity) filter (where state = 'open'), 0) as open,
        coalesce(sum(quantity) filter (where state = 'sold'), 0) as sold
    from shop.hold group by sku, warehouse
), looked_at as (
    select sku, warehouse,
        coalesce(supplied.quantity, 0) as supply,
        coalesce(stock.available, 0) as available,
        coalesce(stock.sold, 0) as sold,
        coalesce(held.open, 0) as held,
        coalesce(held.sold, 0) as sold_by_holds
    from supplied
    full join shop.stock using (sku, warehouse)
    full join held using (sku, warehouse)
), bad as (
    select sku, warehouse, supply, available, sold, held, sold_by_holds, available + sold + held - supply as too_much
    from looked_at
    where supply <> available + sold + held or sold <> sold_by_holds
)
select (select count(*) from looked_at) as "checked!",
    (select count(*) from bad) as "violations!",
    (select coalesce(jsonb_agg(to_jsonb(first)), '[]') from (
        select sku, warehouse, supply, available, sold, held, sold_by_holds, too_much
        from bad order by sku, warehouse limit 20
    ) first) as "rows!"
