// Poll, work, commit. Usage: consumer GROUP CONSUMER, with DATABASE_URL. Needs pgx 5.
package main

import (
	"context"
	"errors"
	"log"
	"math/rand"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	batchEvents       int32 = 100
	visibilitySeconds int32 = 30 // more than a batch takes
)

// Names of this process. Two running processes never have the same consumer name.
var group, consumer string

// Event is a row of poll_outbox, which has more columns.
type Event struct {
	Lease       int64   `db:"lease"`
	Seq         int64   `db:"seq"`
	EventID     string  `db:"event_id"`
	EventType   string  `db:"event_type"`
	AggregateID string  `db:"aggregate_id"`
	Payload     *string `db:"payload"`
	Deliveries  int32   `db:"deliveries"`
}

// work is the effect of one event. It is committed together with the offset, or not at all.
func work(ctx context.Context, tx pgx.Tx, event Event) error {
	sql := "INSERT INTO effect (event_id, seq, aggregate_id, consumer) VALUES ($1, $2, $3, $4)"
	_, err := tx.Exec(ctx, sql, event.EventID, event.Seq, event.AggregateID, consumer)
	return err
}

func poll(ctx context.Context, conn *pgx.Conn) ([]Event, error) {
	sql := `SELECT lease, seq, event_id, event_type, aggregate_id, payload, deliveries
		FROM postrider.poll_outbox($1, $2, $3, $4)`
	rows, err := conn.Query(ctx, sql, group, consumer, batchEvents, visibilitySeconds)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByName[Event])
}

// attempt works on a batch and commits its offset, in one transaction. An error or a stop rolls it back.
func attempt(ctx context.Context, stop context.Context, conn *pgx.Conn, batch []Event) error {
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		for _, event := range batch {
			if stop.Err() != nil {
				return stop.Err()
			}
			if err := work(ctx, tx, event); err != nil {
				return err
			}
		}
		last := batch[len(batch)-1]
		sql := "SELECT postrider.commit_offset($1, $2, $3, $4)"
		_, err := tx.Exec(ctx, sql, group, consumer, last.Seq, last.Lease)
		return err
	})
}

func handle(ctx context.Context, stop context.Context, conn *pgx.Conn, batch []Event) error {
	for stop.Err() == nil {
		err := attempt(ctx, stop, conn, batch)
		if err == nil {
			return nil
		}
		log.Printf("batch rolled back: %v", err)
		if conn.IsClosed() {
			return err
		}
		// PR114, PR115: another consumer has the batch, or has done it. Any other error: the batch is delivered again
		// when its lease has run out; the other partitions go on meanwhile.
		if !isRetry(err) {
			return nil
		}
	}
	return nil
}

// codeOf is the SQLSTATE, if the error is the server's.
func codeOf(err error) string {
	var refused *pgconn.PgError
	if errors.As(err, &refused) {
		return refused.Code
	}
	return ""
}

func isRetry(err error) bool {
	code := codeOf(err)
	return code == "40001" || code == "40P01"
}

// wait waits between min and max, or until the process is to stop.
func wait(stop context.Context, min, max time.Duration) {
	select {
	case <-time.After(min + time.Duration(rand.Int63n(int64(max-min)))):
	case <-stop.Done():
	}
}

// release lets what this name has leased be polled again at once.
func release(ctx context.Context, conn *pgx.Conn) error {
	_, err := conn.Exec(ctx, "SELECT postrider.release_lease($1, $2)", group, consumer)
	return err
}

// run uses one connection until it is lost or the process is to stop.
func run(ctx context.Context, stop context.Context) error {
	config, err := pgx.ParseConfig(os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	config.ConnectTimeout = 10 * time.Second
	// No prepared statements, which would not outlive a transaction behind a transaction pooler.
	config.DefaultQueryExecMode = pgx.QueryExecModeExec
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	// Of a process of this name that was killed, or has lost its connection.
	if err := release(ctx, conn); err != nil {
		return err
	}
	for stop.Err() == nil {
		batch, err := poll(ctx, conn)
		if err != nil && !isRetry(err) {
			return err
		}
		if len(batch) == 0 {
			wait(stop, 200*time.Millisecond, time.Second)
		} else if err := handle(ctx, stop, conn, batch); err != nil {
			return err
		}
	}
	return release(ctx, conn)
}

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: consumer GROUP CONSUMER")
	}
	group, consumer = os.Args[1], os.Args[2]
	stop, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer cancel()
	for stop.Err() == nil {
		err := run(context.Background(), stop)
		if err == nil {
			continue
		}
		// The server refuses what is asked, and will refuse it again: no such group, no rights.
		if code := codeOf(err); code != "" && !strings.Contains("08 40 53 57", code[:2]) {
			log.Fatal(err)
		}
		log.Printf("connecting again: %v", err)
		wait(stop, 500*time.Millisecond, 3*time.Second)
	}
}
