with looked_at as (
    select tenant, order_id, generation, due_at, placed_at, status, needs_attention
    from shop.orders
    where placed_at >= $1
), bad as (
    select tenant, order_id, generation, due_at, placed_at
    from looked_at
    where status = 'awaiting_payment' and not needs_attention
      and greatest(due_at, placed_at) < clock_timestamp() - make_interval(secs => $2)
)
select (select count(*) from looked_at) as "checked!",
    (select count(*) from bad) as "violations!",
    (select coalesce(jsonb_agg(to_jsonb(first)), '[]') from (
        select tenant, order_id, generation, due_at, placed_at from bad order by due_at limit 20
    ) first) as "rows!"
