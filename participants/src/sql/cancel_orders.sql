-- Closes the orders that await payment, in that generation, past their own due time where the cause heeds it.
-- Rows come sorted by key, so that two batches lock them in the same order.
update shop.orders o
set status = 'cancelled',
    version = o.version + 1,
    cancelled_at = clock_timestamp(),
    cancelled_by = wanted.command_id,
    cancel_reason = wanted.cause,
    needs_attention = false
from (
    select tenant, order_id, generation, command_id, cause, heed_due_time
    from unnest($1::text[], $2::text[], $3::integer[], $4::text[], $5::text[], $6::boolean[])
        as given (tenant, order_id, generation, command_id, cause, heed_due_time)
    order by tenant, order_id
) wanted
where o.tenant = wanted.tenant
  and o.order_id = wanted.order_id
  and o.generation = wanted.generation
  and o.status = 'awaiting_payment'
  and (not wanted.heed_due_time or o.due_at <= clock_timestamp())
returning wanted.command_id as "command_id!", o.due_at as "due_at!", o.cancelled_at as "cancelled_at!"
