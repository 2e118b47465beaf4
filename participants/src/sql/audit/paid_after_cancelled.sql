-- A cancelled order never has a paying time, unless it was re-opened, which takes its cancelling time away.
with cancelled as (
    select tenant, order_id, status, paid_at, cancelled_at, cancelled_by
    from shop.orders
    where cancelled_at is not null and placed_at >= $1
)
select (select count(*) from cancelled) as "checked!",
    (select count(*) from cancelled where paid_at > cancelled_at) as "violations!",
    (select coalesce(jsonb_agg(to_jsonb(first)), '[]') from (
        select tenant, order_id, status, paid_at, cancelled_at, cancelled_by
        from cancelled where paid_at > cancelled_at order by paid_at limit 20
    ) first) as "rows!"
