import os
import psycopg

now, enter, leave = "clock_timestamp()", "select lapse_enter(%s)::text", "select lapse_leave(%s)"

def connect():
    return psycopg.connect(os.environ["DATABASE_URL"], options="-c lock_timeout=2000")

def rfc3339(due_at):
    return due_at.isoformat()

def status_of(error):  # 4xx: nothing was applied; 503: who knows
    state = getattr(error, "sqlstate", None) or ""
    return {"40001": 409, "40P01": 409, "55P03": 423}.get(state, 400 if state[:2] in ("22", "23") else 503)
