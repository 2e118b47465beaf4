-- Both times on one row, the cancelling not before the paying; or a paid order whose stock a saga gave back.
with paid as (
    select tenant, order_id, generation, status, paid_at, cancelled_at, cancelled_by
    from shop.orders
    where paid_at is not null and placed_at >= $1
), bad as (
    select tenant, order_id, status, paid_at, cancelled_at, cancelled_by
    from paid
    where cancelled_at >= paid_at
       or exists (
            select from shop.hold h
            join shop.ledger l on l.hold_id = h.hold_id
                and l.hold_generation = h.hold_generation
                and l.direction = 'release'
            where h.tenant = paid.tenant and h.order_id = paid.order_id and h.generation = paid.generation
              and l.at >= paid.paid_at
        )
)
select (select count(*) from paid) as "checked!",
    (select count(*) from bad) as "violations!",
    (select coalesce(jsonb_agg(to_jsonb(first)), '[]') from (
        select tenant, order_id, status, paid_at, cancelled_at, cancelled_by
        from bad order by paid_at limit 20
    ) first) as "rows!"
