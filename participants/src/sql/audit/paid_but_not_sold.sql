with looked_at as (
    select h.hold_id, h.tenant, h.order_id, o.status, h.state
    from shop.orders o
    join shop.hold h using (tenant, order_id, generation)
    where o.placed_at >= $1
)
select (select count(*) from looked_at) as "checked!",
    (select count(*) from looked_at where (status = 'paid') <> (state = 'sold')) as "violations!",
    (select coalesce(jsonb_agg(to_jsonb(first)), '[]') from (
        select hold_id, tenant, order_id, status, state
        from looked_at where (status = 'paid') <> (state = 'sold') limit 20
    ) first) as "rows!"
