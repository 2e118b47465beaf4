with looked_at as (
    select tenant, order_id, due_at, cancelled_at, cancelled_by, cancel_reason
    from shop.orders
    where cancelled_at is not null and cancel_reason in ('timeout', 'sweep') and placed_at >= $1
)
select (select count(*) from looked_at) as "checked!",
    (select count(*) from looked_at where cancelled_at < due_at) as "violations!",
    (select coalesce(jsonb_agg(to_jsonb(first)), '[]') from (
        select tenant, order_id, due_at, cancelled_at, cancelled_by, cancel_reason
        from looked_at where cancelled_at < due_at order by due_at limit 20
    ) first) as "rows!"
