# python3 order_service.py PORT, with DATABASE_URL=postgres://… or mysql://…
import os, sys
import lapse_participant
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

lapse_participant.serve({"CancelOrder": cancel, "ReopenOrder": reopen}, database, port=int(sys.argv[1]))
