with cancelled as (
    select tenant, order_id, generation, cancelled_at, cancelled_by
    from shop.orders
    where status = 'cancelled' and placed_at >= $1
      and cancelled_at < clock_timestamp() - make_interval(secs => $2)
), bad as (
    select h.hold_id, cancelled.tenant, cancelled.order_id, cancelled.cancelled_at, cancelled.cancelled_by
    from cancelled
    join shop.hold h using (tenant, order_id, generation)
    where h.state = 'open'
)
select (select count(*) from cancelled) as "checked!",
    (select count(*) from bad) as "violations!",
    (select coalesce(jsonb_agg(to_jsonb(first)), '[]') from (
        select hold_id, tenant, order_id, cancelled_at, cancelled_by from bad order by cancelled_at limit 20
    ) first) as "rows!"
