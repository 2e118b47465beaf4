// node order_service.mjs PORT, with DATABASE_URL=postgres://…
import pg from 'pg'
import { serve } from './lapse_participant.mjs'

const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL, lock_timeout: 2000 })
pool.on('error', error => console.error('lost a connection:', error.message)) // else it ends the process

async function cancel(db, { command_id, cause, order: { tenant, order_id, generation } }) {
  const { rowCount } = await db.query(`update orders set status = 'cancelled', cancelled_by = $4
    where tenant = $1 and order_id = $2 and generation = $3 and status = 'awaiting_payment'
      and (not $5 or due_at <= clock_timestamp())`,
    [tenant, order_id, generation, command_id, ['timeout', 'sweep'].includes(cause)])
  if (rowCount) return { outcome: 'done', output: { already: false } }
  const { rows: [row] } = await db.query('select * from orders where tenant = $1 and order_id = $2', [tenant, order_id])
  if (!row) return { outcome: 'failed', error: 'unknown_order' }
  if (row.generation !== generation) return { outcome: 'not_applicable', reason: 'generation' }
  if (row.status === 'paid') return { outcome: 'not_applicable', reason: 'paid' }
  if (row.status === 'cancelled') return { outcome: 'done', output: { already: true } }
  return { outcome: 'not_due', until: row.due_at } // a Date: RFC 3339 as JSON
}

// Only what the very command that is undone has cancelled, and it is left to a human.
async function reopen(db, { action_id, order: { tenant, order_id, generation } }) {
  const { rowCount } = await db.query(`update orders
    set status = 'awaiting_payment', cancelled_by = null, needs_attention = true
    where tenant = $1 and order_id = $2 and generation = $3 and status = 'cancelled' and cancelled_by = $4`,
    [tenant, order_id, generation, action_id])
  return { outcome: 'done', output: { undone: rowCount === 1 } }
}

serve(pool, { CancelOrder: cancel, ReopenOrder: reopen }, +process.argv[2])
