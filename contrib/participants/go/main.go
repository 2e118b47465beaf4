// order-service PORT, with DATABASE_URL=postgres://…
package main

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net/http"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	_ "github.com/jackc/pgx/v5/stdlib"
)

type object = map[string]any

type command struct {
	ID        string `json:"command_id"`
	ActionID  string `json:"action_id"`
	Operation string
	Order     struct {
		Tenant     string
		ID         string `json:"order_id"`
		Generation int
	}
	Cause     string
	ExpiresAt time.Time `json:"expires_at"`
}

func cancel(ctx context.Context, tx *sql.Tx, c command) (object, error) {
	var generation int
	var status string
	var due time.Time
	done, err := tx.ExecContext(ctx, `update orders set status = 'cancelled', cancelled_by = $4
		where tenant = $1 and order_id = $2 and generation = $3 and status = 'awaiting_payment'
		  and (not $5 or due_at <= clock_timestamp())`,
		c.Order.Tenant, c.Order.ID, c.Order.Generation, c.ID, c.Cause == "timeout" || c.Cause == "sweep")
	if err != nil {
		return nil, err
	}
	if rows, _ := done.RowsAffected(); rows == 1 {
		return object{"outcome": "done", "output": object{"already": false}}, nil
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
	done, err := tx.ExecContext(ctx, `update orders set status = 'awaiting_payment', cancelled_by = null, needs_attention = true
		where tenant = $1 and order_id = $2 and generation = $3 and status = 'cancelled' and cancelled_by = $4`,
		c.Order.Tenant, c.Order.ID, c.Order.Generation, c.ActionID)
	if err != nil {
		return nil, err
	}
	rows, err := done.RowsAffected()
	return object{"outcome": "done", "output": object{"undone": rows == 1}}, err
}

var effects = map[string]func(context.Context, *sql.Tx, command) (object, error){"CancelOrder": cancel, "ReopenOrder": reopen}

// One transaction for one command.
func answer(ctx context.Context, db *sql.DB, c command, text json.RawMessage) (found []byte, err error) {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return nil, err
	}
	defer tx.Rollback()
	if err = tx.QueryRowContext(ctx, `select lapse_enter($1)`, string(text)).Scan(&found); err != nil {
		return nil, err
	}
	if found == nil {
		outcome, err := effects[c.Operation](ctx, tx, c)
		if err != nil {
			return nil, err
		}
		outcome["command_id"] = c.ID
		found, _ = json.Marshal(outcome)
		if _, err = tx.ExecContext(ctx, `select lapse_leave($1)`, string(found)); err != nil {
			return nil, err
		}
	}
	return found, tx.Commit()
}

func statusOf(err error) int { // 4xx: nothing was applied; 503: who knows
	var of *pgconn.PgError
	switch {
	case !errors.As(err, &of):
		return 503
	case of.Code == "40001" || of.Code == "40P01":
		return 409
	case of.Code == "55P03":
		return 423
	case of.Code[:2] == "22" || of.Code[:2] == "23":
		return 400
	}
	return 503
}

func commands(ctx context.Context, db *sql.DB, path string, body []byte) (int, any) {
	batch, single := []json.RawMessage{body}, !bytes.HasPrefix(bytes.TrimSpace(body), []byte("["))
	if !single {
		if err := json.Unmarshal(body, &batch); err != nil {
			return 400, object{"detail": err.Error()}
		}
	}
	list := make([]command, len(batch))
	for i, text := range batch {
		if err := json.Unmarshal(text, &list[i]); err != nil || list[i].ID == "" {
			return 400, object{"detail": "not commands"}
		}
		if effects[list[i].Operation] == nil || path != "/v1/commands" {
			return 404, object{"detail": "POST /v1/commands for CancelOrder and ReopenOrder is all there is"}
		}
	}
	answers := []any{}
	for i, c := range list {
		found, err := answer(ctx, db, c, batch[i])
		status := statusOf(err)
		switch {
		case single && err != nil:
			return status, object{"detail": err.Error()}
		case single:
			return 200, json.RawMessage(found)
		case err == nil:
			answers = append(answers, json.RawMessage(found))
		case status == 503: // what may have been applied is left out
			log.Printf("%s: %v", c.ID, err)
		default:
			answers = append(answers, object{"command_id": c.ID, "outcome": "failed", "error": "refused: " + err.Error()})
		}
	}
	return 200, answers
}

func main() {
	db, err := sql.Open("pgx", os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(http.ListenAndServe("127.0.0.1:"+os.Args[1], http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		status, reply := 413, any(object{"detail": "more than 4 MiB"})
		if body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 4<<20)); err == nil {
			status, reply = commands(r.Context(), db, r.URL.Path, body)
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(reply)
	})))
}
