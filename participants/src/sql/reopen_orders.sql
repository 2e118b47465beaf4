-- Re-opens the orders that were closed by the very command that is undone, and leaves them to a human.
update shop.orders o
set status = 'awaiting_payment',
    version = o.version + 1,
    cancelled_at = null,
    cancelled_by = null,
    cancel_reason = null,
    reopened_at = clock_timestamp(),
    needs_attention = true
from (
    select tenant, order_id, generation, action_id, command_id
    from unnest($1::text[], $2::text[], $3::integer[], $4::text[], $5::text[])
        as given (tenant, order_id, generation, action_id, command_id)
    order by tenant, order_id
) wanted
where o.tenant = wanted.tenant
  and o.order_id = wanted.order_id
  and o.generation = wanted.generation
  and o.status = 'cancelled'
  and o.cancelled_by = wanted.action_id
returning wanted.command_id as "command_id!"
