with looked_at as (
    select tenant, order_id, due_at, cancelled_at, cancelled_by, cancel_reason,
        extract(epoch from cancelled_at - greatest(due_at, placed_at, reopened_at))::float8 as late_s
    from shop.orders
    where cancelled_at is not null and cancel_reason in ('timeout', 'sweep') and placed_at >= $1
)
select (select count(*) from looked_at) as "checked!",
    (select coalesce(jsonb_agg(to_jsonb(late)), '[]') from (
        select tenant, order_id, due_at, cancelled_at, cancelled_by, cancel_reason, late_s
        from looked_at where late_s > $2::float8 order by late_s desc
    ) late) as "orders!: Json<Vec<Late>>"
