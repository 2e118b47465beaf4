// order-service PORT, with DATABASE_URL=postgres://…
package main

import (
	"context"
	"database/sql"
	"errors"
	"log"
	"os"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
)

func cancel(ctx context.Context, tx *sql.Tx, c command) (object, error) {
	var generation int
	var status string
	var due time.Time
	done, err := changed(tx.ExecContext(ctx, `update orders set status = 'cancelled', cancelled_by = $4
		where tenant = $1 and order_id = $2 and generation = $3 and status = 'awaiting_payment'
		  and (not $5 or due_at <= clock_timestamp())`,
		c.Order.Tenant, c.Order.ID, c.Order.Generation, c.ID, c.Cause == "timeout" || c.Cause == "sweep"))
	if done || err != nil {
		return object{"outcome": "done", "output": object{"already": false}}, err
	}
	err = tx.QueryRowContext(ctx, `select generation, status, due_at from orders where tenant = $1 and order_id = $2`,
		c.Order.Tenant, c.Order.ID).Scan(&generation, &status, &due)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return object{"outcome": "failed", "error": "unknown_order"}, nil
	case err != nil:
		return nil, err
	case generation != c.Order.Generation:
		return object{"outcome": "not_applicable", "reason": "generation"}, nil
	case status == "paid":
		return object{"outcome": "not_applicable", "reason": "paid"}, nil
	case status == "cancelled":
		return object{"outcome": "done", "output": object{"already": true}}, nil
	}
	return object{"outcome": "not_due", "until": due}, nil
}

// Only what the very command that is undone has cancelled, and it is left to a human.
func reopen(ctx context.Context, tx *sql.Tx, c command) (object, error) {
	undone, err := changed(tx.ExecContext(ctx, `update orders set status = 'awaiting_payment', cancelled_by = null, needs_attention = true
		where tenant = $1 and order_id = $2 and generation = $3 and status = 'cancelled' and cancelled_by = $4`,
		c.Order.Tenant, c.Order.ID, c.Order.Generation, c.ActionID))
	return object{"outcome": "done", "output": object{"undone": undone}}, err
}

func main() {
	db, err := sql.Open("pgx", os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(serve(db, map[string]effect{"CancelOrder": cancel, "ReopenOrder": reopen}, os.Args[1]))
}
