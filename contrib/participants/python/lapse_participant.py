# Serves effects as docs/participants.md says: the same for every participant. An effect is called in the transaction of its
# command as effect(cursor, command, (tenant, order id, generation)) and gives its answer without command_id.
import json, sys
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

def answer(connection, c, effects, database):  # one transaction for one command
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
        and all(isinstance(c[field], str) for field in ("command_id", "operation"))
        and all(isinstance(c["order"][field], str) for field in ("tenant", "order_id")))
    except (KeyError, TypeError, ValueError): return False

def commands(path, body, effects, database):
    batch = body if isinstance(body, list) else [body]
    if not all(readable(c) for c in batch): return 400, {"detail": "not commands"}
    if path != "/v1/commands" or any(c["operation"] not in effects for c in batch):
        return 404, {"detail": f"POST /v1/commands for {', '.join(effects)} is all there is"}
    answers = []
    with database.connect() as connection:  # yours come from a pool
        for c in batch:
            try: answers.append(answer(connection, c, effects, database))
            except Exception as error:
                connection.rollback()  # where that fails too, the whole request is answered 503
                status = database.status_of(error)
                if batch is not body: return status, {"detail": str(error)}
                if status == 503: print(c["command_id"], error, file=sys.stderr)  # what may have been applied is left out
                else: answers.append({"command_id": c["command_id"], "outcome": "failed", "error": f"refused: {error}"})
    return 200, answers if batch is body else answers[0]

def serve(effects, database, port):
    class Service(BaseHTTPRequestHandler):
        def do_POST(self):
            length = int(self.headers.get("content-length") or 0)
            text = self.rfile.read(min(length, 4 << 20))
            try:
                if length > len(text): status, body = 413, {"detail": "more than 4 MiB"}
                else: status, body = commands(self.path, json.loads(text), effects, database)
            except Exception as error:
                status = 400 if isinstance(error, (ValueError, RecursionError)) else 503
                body = {"detail": str(error)}
            self.send_response(status)
            self.send_header("content-type", "application/json" if status == 200 else "application/problem+json")
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

    ThreadingHTTPServer(("127.0.0.1", port), Service).serve_forever()
