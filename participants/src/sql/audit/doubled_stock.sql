-- A hold in generation g was released in each generation before, and taken back each time; in g itself it was released
-- once if it is released, and not at all otherwise. Every movement is of the hold's whole quantity.
with looked_at as (
    select h.hold_id, h.tenant, h.order_id, h.state, h.hold_generation, h.quantity,
        count(l.hold_id) filter (where l.direction = 'release') as releases,
        count(l.hold_id) filter (where l.direction = 'withdraw') as withdrawals,
        count(l.hold_id) filter (where l.hold_generation > h.hold_generation) as ahead,
        count(l.hold_id) filter (where l.quantity <> h.quantity) as other_quantity
    from shop.hold h
    left join shop.ledger l using (hold_id)
    where h.held_at >= $1
    group by h.hold_id
), orphans as (
    select l.hold_id, l.hold_generation, l.direction, l.quantity, l.command_id
    from shop.ledger l
    left join shop.hold h using (hold_id)
    where h.hold_id is null and l.at >= $1
), bad as (
    select to_jsonb(looked_at) as detail
    from looked_at
    where releases <> hold_generation - (state <> 'released')::integer
       or withdrawals <> hold_generation - 1
       or ahead > 0
       or other_quantity > 0
    union all
    select to_jsonb(orphans) from orphans
)
select (select count(*) from looked_at) as "checked!",
    (select count(*) from bad) as "violations!",
    (select coalesce(jsonb_agg(detail), '[]') from (select detail from bad limit 20) first) as "rows!"
