# python3 order_service.py PORT, with DATABASE_URL=postgres://… or mysql://…
import json, os, sys
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
if os.environ["DATABASE_URL"].startswith("mysql"): import on_mysql as database
else: import on_postgres as database

def cancel(db, c, order):
    db.execute(f"""update orders set status = 'cancelled', cancelled_by = %s
        where tenant = %s and order_id = %s and generation = %s and status = 'awaiting_payment'
          and (not %s or due_at <= {database.now})""", (c["command_id"], *order, c["cause"] in ("timeout", "sweep")))
    if db.rowcount: return {"outcome": "done", "output": {"already": False}}
    db.execute("select generation, status, due_at from orders where tenant = %s and order_id = %s", order[:2])
    generation, status, due_at = db.fetchone() or (None, None, None)
    if status is None: return {"outcome": "failed", "error": "unknown_order"}
    if generation != order[2] or status == "paid":
        return {"outcome": "not_applicable", "reason": "paid" if generation == order[2] else "generation"}
    if status == "cancelled": return {"outcome": "done", "output": {"already": True}}
    return {"outcome": "not_due", "until": database.rfc3339(due_at)}

def reopen(db, c, order):  # only what the very command that is undone has cancelled, and it is left to a human
    db.execute("""update orders set status = 'awaiting_payment', cancelled_by = null, needs_attention = true
        where tenant = %s and order_id = %s and generation = %s and status = 'cancelled' and cancelled_by = %s""",
        (*order, c["action_id"]))
    return {"outcome": "done", "output": {"undone": db.rowcount == 1}}

effects = {"CancelOrder": cancel, "ReopenOrder": reopen}

def answer(connection, c):  # one transaction for one command
    db = connection.cursor()
    db.execute(database.enter, (json.dumps(c),))
    found = db.fetchone()[0]
    if found is None:
        order = c["order"]["tenant"], c["order"]["order_id"], c["order"]["generation"]
        found = json.dumps({"command_id": c["command_id"], **effects[c["operation"]](db, c, order)})
        db.execute(database.leave, (found,))
    connection.commit()
    return json.loads(found)

def readable(c):
    try: return (datetime.fromisoformat(c["expires_at"]).tzinfo and isinstance(c["order"]["generation"], int)
        and all(isinstance(text, str) for text in (c["command_id"], c["operation"], c["order"]["tenant"], c["order"]["order_id"])))
    except (KeyError, TypeError, ValueError): return False

def commands(path, body):
    batch = body if isinstance(body, list) else [body]
    if not all(readable(c) for c in batch): return 400, {"detail": "not commands"}
    if path != "/v1/commands" or any(c["operation"] not in effects for c in batch):
        return 404, {"detail": "POST /v1/commands for CancelOrder and ReopenOrder is all there is"}
    answers = []
    with database.connect() as connection:  # yours come from a pool
        for c in batch:
            try: answers.append(answer(connection, c))
            except Exception as error:
                connection.rollback()  # where that fails too, the whole request is answered 503
                status = database.status_of(error)
                if batch is not body: return status, {"detail": str(error)}
                if status == 503: print(c["command_id"], error, file=sys.stderr)  # what may have been applied is left out
                else: answers.append({"command_id": c["command_id"], "outcome": "failed", "error": f"refused: {error}"})
    return 200, answers if batch is body else answers[0]

class Service(BaseHTTPRequestHandler):
    def do_POST(self):
        length = int(self.headers.get("content-length") or 0)
        text = self.rfile.read(min(length, 4 << 20))
        try:
            if length > len(text): status, body = 413, {"detail": "more than 4 MiB"}
            else: status, body = commands(self.path, json.loads(text))
        except Exception as error: status, body = 400 if isinstance(error, (ValueError, RecursionError)) else 503, {"detail": str(error)}
        self.send_response(status)
        self.send_header("content-type", "application/json" if status == 200 else "application/problem+json")
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Service).serve_forever()
