import os
from urllib.parse import urlsplit
import pymysql

now, enter, leave = "utc_timestamp(6)", "call lapse_enter(%s)", "call lapse_leave(%s)"

def connect():
    at = urlsplit(os.environ["DATABASE_URL"])
    return pymysql.connect(host=at.hostname, port=at.port or 3306, user=at.username, password=at.password,
                           database=at.path[1:], init_command="set session innodb_lock_wait_timeout = 2")

def rfc3339(due_at):
    return due_at.isoformat() + "Z"  # stored as UTC

def status_of(error):  # 4xx: nothing was applied; 503: who knows
    bad = isinstance(error, (pymysql.err.DataError, pymysql.err.IntegrityError))
    return {1213: 409, 1205: 423}.get(error.args[0] if error.args else None, 400 if bad else 503)
