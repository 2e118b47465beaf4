// Serves effects as docs/participants.md says: the same for every participant.
package main

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
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

// effect is what a command does, in its transaction. It gives its answer without command_id.
type effect func(context.Context, *sql.Tx, command) (object, error)

// changed says whether a statement has changed its one row.
func changed(result sql.Result, err error) (bool, error) {
	if err != nil {
		return false, err
	}
	rows, err := result.RowsAffected()
	return rows == 1, err
}

// One transaction for one command.
func answer(ctx context.Context, db *sql.DB, do effect, c command, text json.RawMessage) (found []byte, err error) {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return nil, err
	}
	defer tx.Rollback()
	if err = tx.QueryRowContext(ctx, `select lapse_enter($1)`, string(text)).Scan(&found); err != nil {
		return nil, err
	}
	if found == nil {
		outcome, err := do(ctx, tx, c)
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

func commands(ctx context.Context, db *sql.DB, effects map[string]effect, path string, body []byte) (int, any) {
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
			return 404, object{"detail": fmt.Sprintf("POST /v1/commands for %s is all there is", slices.Collect(maps.Keys(effects)))}
		}
	}
	answers := []any{}
	for i, c := range list {
		found, err := answer(ctx, db, effects[c.Operation], c, batch[i])
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

func serve(db *sql.DB, effects map[string]effect, port string) error {
	return http.ListenAndServe("127.0.0.1:"+port, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		status, reply := 413, any(object{"detail": "more than 4 MiB"})
		if body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 4<<20)); err == nil {
			status, reply = commands(r.Context(), db, effects, r.URL.Path, body)
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(reply)
	}))
}
