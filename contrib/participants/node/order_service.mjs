// node order_service.mjs PORT, with DATABASE_URL=postgres://…
import http from 'node:http'
import pg from 'pg'

const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL, lock_timeout: 2000 })
pool.on('error', error => console.error('lost a connection:', error.message)) // else it ends the process

async function cancel(db, { command_id, cause, order: { tenant, order_id, generation } }) {
  const { rowCount } = await db.query(`update orders set status = 'cancelled', cancelled_by = $4
    where tenant = $1 and order_id = $2 and generation = $3 and status = 'awaiting_payment'
      and (not $5 or due_at <= clock_timestamp())`, [tenant, order_id, generation, command_id, ['timeout', 'sweep'].includes(cause)])
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

const effects = { CancelOrder: cancel, ReopenOrder: reopen }

async function answer(db, c) { // one transaction for one command
  await db.query('begin')
  let { rows: [{ found }] } = await db.query('select lapse_enter($1) as found', [JSON.stringify(c)])
  if (!found) {
    found = { command_id: c.command_id, ...await effects[c.operation](db, c) }
    await db.query('select lapse_leave($1)', [JSON.stringify(found)])
  }
  await db.query('commit')
  return found
}

function statusOf(error) { // 4xx: nothing was applied; 503: who knows
  const bad = error instanceof SyntaxError || /^2[23]/.test(error.code)
  return { '40001': 409, '40P01': 409, '55P03': 423 }[error.code] ?? (bad ? 400 : 503)
}

function readable(c) {
  return [c?.command_id, c?.operation, c?.order?.tenant, c?.order?.order_id].every(text => typeof text === 'string')
    && Number.isInteger(c.order.generation) && !Number.isNaN(Date.parse(c.expires_at))
}

async function commands(path, body) {
  const batch = Array.isArray(body) ? body : [body], answers = []
  if (!batch.every(readable)) return [400, { detail: 'not commands' }]
  if (path !== '/v1/commands' || !batch.every(c => Object.hasOwn(effects, c.operation)))
    return [404, { detail: 'POST /v1/commands for CancelOrder and ReopenOrder is all there is' }]
  const db = await pool.connect()
  try {
    for (const c of batch) {
      try { answers.push(await answer(db, c)) } catch (error) {
        await db.query('rollback') // where that fails too, the whole request is answered 503
        const status = statusOf(error)
        if (batch !== body) return [status, { detail: error.message }]
        if (status === 503) console.error(c.command_id, error) // what may have been applied is left out
        else answers.push({ command_id: c.command_id, outcome: 'failed', error: `refused: ${error.message}` })
      }
    }
  } finally { db.release() }
  return [200, batch === body ? answers : answers[0]]
}

http.createServer(async (request, response) => {
  let text = '', status = 413, body = { detail: 'more than 4 MiB' }
  try {
    for await (const part of request.setEncoding('utf8')) if (text.length <= 4 << 20) text += part
    if (text.length <= 4 << 20) [status, body] = await commands(request.url, JSON.parse(text))
  } catch (error) { [status, body] = [statusOf(error), { detail: error.message }] } // a request that was cut among them
  response.writeHead(status, { 'content-type': status === 200 ? 'application/json' : 'application/problem+json' })
  response.end(JSON.stringify(body))
}).listen(+process.argv[2], '127.0.0.1')
