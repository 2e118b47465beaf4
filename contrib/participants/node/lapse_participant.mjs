// Serves effects as docs/participants.md says: the same for every participant. An effect is called in the transaction of its
// command as effect(connection, command) and resolves to its answer without command_id.
import http from 'node:http'

async function answer(db, c, effects) { // one transaction for one command
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

async function commands(path, body, pool, effects) {
  const batch = Array.isArray(body) ? body : [body], answers = []
  if (!batch.every(readable)) return [400, { detail: 'not commands' }]
  if (path !== '/v1/commands' || !batch.every(c => Object.hasOwn(effects, c.operation)))
    return [404, { detail: `POST /v1/commands for ${Object.keys(effects).join(', ')} is all there is` }]
  const db = await pool.connect()
  try {
    for (const c of batch) {
      try { answers.push(await answer(db, c, effects)) } catch (error) {
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

export function serve(pool, effects, port) {
  http.createServer(async (request, response) => {
    let text = '', status = 413, body = { detail: 'more than 4 MiB' }
    try {
      for await (const part of request.setEncoding('utf8')) if (text.length <= 4 << 20) text += part
      if (text.length <= 4 << 20) [status, body] = await commands(request.url, JSON.parse(text), pool, effects)
    } catch (error) { [status, body] = [statusOf(error), { detail: error.message }] } // a request that was cut among them
    response.writeHead(status, { 'content-type': status === 200 ? 'application/json' : 'application/problem+json' })
    response.end(JSON.stringify(body))
  }).listen(port, '127.0.0.1')
}
