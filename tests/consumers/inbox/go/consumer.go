// The inbox in a consumer and in workers. Needs pgx 5, and DATABASE_URL.
//
//	consumer is-new|advance|once CONSUMER < records    each effect once, behind Kafka
//	consumer store INBOX < records                     store first ...
//	consumer work INBOX WORKER                         ... and work in one transaction
//	consumer ordered INBOX WORKER SECONDS              ... or with a lease
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	defaultSource       = "orders" // the name of the pipeline, if the records do not have it as a header
	batchMessages int32 = 10
)

// Record is a record of Kafka.
type Record struct {
	Offset, Topic, Key string
	Headers            map[string]string
	Value              string
}

// Message is a row of inbox_next, which has more columns.
type Message struct {
	EventID     string `db:"event_id"`
	AggregateID string `db:"aggregate_id"`
	Payload     string `db:"payload"`
	Claim       *int64 `db:"claim"`
}

// recordOf stands for a client of Kafka: a record is a line of the standard input, its fields separated by tabs.
// Headers are NAME=VALUE, separated by commas.
func recordOf(line string) Record {
	fields := strings.SplitN(line, "\t", 5)
	headers := map[string]string{}
	for _, header := range strings.Split(fields[3], ",") {
		if name, value, found := strings.Cut(header, "="); found {
			headers[name] = value
		}
	}
	return Record{fields[0], fields[1], fields[2], headers, fields[4]}
}

// commitOffset stands for the commit of the offset in Kafka.
func commitOffset(record Record) {
	fmt.Println(record.Offset)
}

// header is NULL if the record does not have it.
func (record Record) header(name string) *string {
	if value, found := record.Headers[name]; found {
		return &value
	}
	return nil
}

func (record Record) aggregate() string {
	return record.Topic + "/" + record.Key
}

func (record Record) source(otherwise string) string {
	if source := record.header("source"); source != nil {
		return *source
	}
	return otherwise
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

func inTransaction(ctx context.Context, conn *pgx.Conn, work func(pgx.Tx) error) error {
	for {
		err := pgx.BeginFunc(ctx, conn, work)
		if !isRetry(err) || conn.IsClosed() {
			return err
		}
	}
}

// effect is whatever is to happen once, in this database.
func effect(ctx context.Context, tx pgx.Tx, eventID, aggregate, payload, doneBy string) error {
	sql := "INSERT INTO effect (event_id, aggregate_id, payload, done_by) VALUES ($1, $2, $3::text::jsonb, $4)"
	_, err := tx.Exec(ctx, sql, eventID, aggregate, payload, doneBy)
	return err
}

// Rule says whether the effect of a record is to happen.
type Rule func(ctx context.Context, tx pgx.Tx, consumer string, record Record) (bool, error)

// isNew is for all events of Postrider.
func isNew(ctx context.Context, tx pgx.Tx, consumer string, record Record) (is bool, err error) {
	row := tx.QueryRow(ctx, "SELECT postrider.inbox_is_new($1, $2, $3, $4, $5, $6)",
		consumer, record.source(defaultSource), record.aggregate(),
		record.header("id"), record.header("position"), record.header("history"))
	err = row.Scan(&is)
	return is, err
}

func handle(ctx context.Context, conn *pgx.Conn, consumer string, record Record, rule Rule) error {
	err := inTransaction(ctx, conn, func(tx pgx.Tx) error {
		if is, err := rule(ctx, tx, consumer, record); err != nil || !is {
			return err
		}
		return effect(ctx, tx, record.Headers["id"], record.aggregate(), record.Value, consumer)
	})
	if err == nil {
		commitOffset(record)
	}
	return err
}

// advance is for events that always have a position.
func advance(ctx context.Context, tx pgx.Tx, consumer string, record Record) (is bool, err error) {
	row := tx.QueryRow(ctx, "SELECT postrider.inbox_advance($1, $2, $3, $4)",
		consumer, record.source(defaultSource), record.aggregate(), record.header("position"))
	err = row.Scan(&is)
	return is, err
}

// once is for messages of other producers, with their own time if they have one.
func once(ctx context.Context, tx pgx.Tx, consumer string, record Record) (is bool, err error) {
	row := tx.QueryRow(ctx, "SELECT postrider.inbox_once($1, $2, $3, $4::text::timestamptz)",
		consumer, record.source(record.Topic), record.header("id"), record.header("time"))
	err = row.Scan(&is)
	return is, err
}

// store stores a record, and nothing else. A repetition has the same event_id.
func store(ctx context.Context, conn *pgx.Conn, inbox string, record Record) error {
	history := record.Headers["history"]
	if position := record.header("position"); position != nil {
		history = (*position)[:8]
	}
	source := record.source(defaultSource)
	sql := "INSERT INTO postrider_inbox." + inbox +
		` (event_id, event_type, source, aggregate_id, payload, sequence_num)
		VALUES ($1, $2, $3, $4, $5::text::jsonb, $6::text::bigint) ON CONFLICT (event_id) DO NOTHING`
	_, err := conn.Exec(ctx, sql, source+"/"+history+"/"+record.Headers["id"], record.header("type"), source,
		record.aggregate(), record.Value, record.header("sequence"))
	if err == nil {
		commitOffset(record)
	}
	return err
}

// querier is a connection or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, arguments ...any) (pgx.Rows, error)
	Exec(ctx context.Context, sql string, arguments ...any) (pgconn.CommandTag, error)
}

func next(ctx context.Context, from querier, inbox, worker string, lease *string) ([]Message, error) {
	sql := `SELECT event_id, aggregate_id, payload::text, claim
		FROM postrider.inbox_next($1, $2, $3, $4::text::interval)`
	rows, err := from.Query(ctx, sql, inbox, worker, batchMessages, lease)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByName[Message])
}

func effectAndDone(ctx context.Context, tx pgx.Tx, inbox, worker string, message Message) error {
	if err := effect(ctx, tx, message.EventID, message.AggregateID, message.Payload, worker); err != nil {
		return err
	}
	sql := "SELECT postrider.inbox_done($1, $2, $3)"
	_, err := tx.Exec(ctx, sql, inbox, []string{message.EventID}, message.Claim)
	return err
}

func fail(ctx context.Context, to querier, inbox string, message Message, reason error) error {
	log.Printf("failed: %s %v", message.EventID, reason)
	sql := "SELECT postrider.inbox_fail($1, $2, $3, $4)"
	_, err := to.Exec(ctx, sql, inbox, message.EventID, reason.Error(), message.Claim)
	return err
}

// work does a batch in one transaction. It returns how many messages it had.
func work(ctx context.Context, tx pgx.Tx, inbox, worker string) (int, error) {
	batch, err := next(ctx, tx, inbox, worker, nil)
	if err != nil {
		return 0, err
	}
	for _, message := range batch {
		err := pgx.BeginFunc(ctx, tx, func(savepoint pgx.Tx) error {
			return effectAndDone(ctx, savepoint, inbox, worker, message)
		})
		if isRetry(err) {
			return 0, err
		}
		if err != nil {
			// It fails too if the connection is lost.
			if err := fail(ctx, tx, inbox, message, err); err != nil {
				return 0, err
			}
		}
	}
	return len(batch), nil
}

// workWithLease does a batch with a lease, and a transaction for each message. It returns how many messages it had.
func workWithLease(ctx context.Context, conn *pgx.Conn, inbox, worker, seconds string) (int, error) {
	lease := seconds + " seconds"
	batch, err := next(ctx, conn, inbox, worker, &lease)
	if err != nil {
		return 0, err
	}
	for _, message := range batch {
		err := inTransaction(ctx, conn, func(tx pgx.Tx) error {
			return effectAndDone(ctx, tx, inbox, worker, message)
		})
		if err != nil && codeOf(err) != "PR114" {
			// It fails too if the connection is lost.
			err = fail(ctx, conn, inbox, message, err)
		}
		if codeOf(err) == "PR114" {
			// Another worker has the message since the lease ended. The effect is rolled back.
			log.Printf("lost: %s %s", message.EventID, codeOf(err))
		} else if err != nil {
			return 0, err
		}
	}
	return len(batch), nil
}

func consume(ctx context.Context, conn *pgx.Conn, mode, name string) error {
	rules := map[string]Rule{"is-new": isNew, "advance": advance, "once": once}
	input := bufio.NewReader(os.Stdin)
	for {
		line, err := input.ReadString('\n')
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		record := recordOf(strings.TrimSuffix(line, "\n"))
		if mode == "store" {
			err = store(ctx, conn, name, record)
		} else {
			err = handle(ctx, conn, name, record, rules[mode])
		}
		if err != nil {
			return err
		}
	}
}

func run(ctx context.Context, conn *pgx.Conn, arguments []string) error {
	mode, name := arguments[0], arguments[1]
	for mode == "work" || mode == "ordered" {
		var count int
		var err error
		worker := arguments[2]
		if mode == "work" {
			err = inTransaction(ctx, conn, func(tx pgx.Tx) (err error) {
				count, err = work(ctx, tx, name, worker)
				return err
			})
		} else {
			count, err = workWithLease(ctx, conn, name, worker, arguments[3])
		}
		if err != nil {
			return err
		}
		if count == 0 {
			time.Sleep(time.Duration(200+rand.Intn(800)) * time.Millisecond)
		}
	}
	return consume(ctx, conn, mode, name)
}

func main() {
	ctx := context.Background()
	config, err := pgx.ParseConfig(os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	// No prepared statements, which would not outlive a transaction behind a transaction pooler.
	config.DefaultQueryExecMode = pgx.QueryExecModeExec
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		log.Fatal(err)
	}
	if err := run(ctx, conn, os.Args[1:]); err != nil {
		log.Fatal(err)
	}
}
