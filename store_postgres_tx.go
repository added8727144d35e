package idempotency

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// InTx runs fn in a transaction and records the running attempt's response in that same
// transaction: the business writes and the record stand or fall together, and what fn
// does in tx happens exactly once. Pass it the handler's context, or one made from it:
// with any other, InTx is a plain transaction, without the record.
//
// It is one too for a request that runs unprotected ([Config.KeyOptional] without a key,
// [Config.FailOpen]), but there as well the response is held: what fn writes is sent when
// the transaction is committed, and taken back when it is not.
//
// fn writes the response to the handler's ResponseWriter, at any length; without one
// InTx rolls back and returns ErrNoResponse (not in a [Consumer], where there is none).
// fn must not end tx, neither by its methods nor in SQL: InTx then records nothing and
// returns an error. If fn returns an error, InTx rolls back, takes back what fn wrote to
// the response, and returns that error as it is: nothing happened, and the handler may
// answer as it likes, or try again. A panic in fn rolls back too. If another attempt
// owns the key by now, or the attempt runs on another store (one that wraps this one
// will do), InTx rolls back and returns ErrClaimLost, in the second case with that
// store's type. Errors of PostgreSQL, such as 40001 and 40P01, come back as pgx gives
// them.
//
// Once InTx has returned nil the outcome is final: later writes to the response fail,
// Release, KeepRef and a panic change nothing, and a second InTx runs nothing and
// returns an error. Release, or a status that Config.Keep declines, before fn ends
// frees the key in the transaction instead of recording the response.
//
// If the reply to COMMIT is lost, InTx asks the database what happened. If it cannot
// find out within StoreTimeout, it returns an error that matches [ErrUnavailable]; the
// claim is left as it is, whatever the handler writes from then on is dropped, and the
// client gets 503. Its retry meets the truth.
func (s *PostgresStore) InTx(ctx context.Context, fn func(tx pgx.Tx) error) error {
	if fn == nil {
		return failed("InTx", errors.New("the function is nil"))
	}
	if s.unmade() {
		return failed("InTx", errUnmade)
	}
	a := FromContext(ctx)
	if a == nil {
		return s.plainTx(ctx, fn)
	}
	if err := a.enterTx(); err != nil {
		return err
	}
	t := attemptTx{store: s, attempt: a}
	if a.rec != nil {
		var ok bool
		if t.mark, ok = a.rec.hold(); !ok {
			a.leaveTx()
			return errDecided
		}
	}
	defer t.leave() // also when fn panics
	return t.run(ctx, fn)
}

// plainTx is InTx without an attempt.
func (s *PostgresStore) plainTx(ctx context.Context, fn func(tx pgx.Tx) error) (err error) {
	if w, ok := ctx.Value(heldKey).(*heldWriter); ok && w.hold() {
		committed := false
		defer func() { w.release(committed) }() // also when fn panics
		err = pgx.BeginFunc(ctx, s.db, fn)
		committed = err == nil
		return err
	}
	return pgx.BeginFunc(ctx, s.db, fn)
}

// attemptTx is one transaction of an attempt.
type attemptTx struct {
	store   *PostgresStore
	attempt *Attempt
	mark    recorderMark
	tx      pgx.Tx
	stands  bool // committed, or not known to be rolled back
}

var errTxEnded = fmt.Errorf("idempotency: the function of InTx has ended its transaction: %w", pgx.ErrTxClosed)

var errResponseGone = errors.New("idempotency: response written after its transaction was committed")

func (t *attemptTx) run(ctx context.Context, fn func(tx pgx.Tx) error) (err error) {
	if t.tx, err = t.store.db.Begin(ctx); err != nil {
		return err
	}
	tx := &watchedTx{Tx: t.tx}
	if err = fn(tx); err != nil {
		return err
	}
	if tx.ended() {
		return errTxEnded
	}
	a := t.attempt
	if a.rec != nil && !a.rec.whole() {
		return ErrNoResponse
	}
	resp, keep := a.outcome()

	// From here to the commit's end a renewal would meet a claim that is settled, and
	// take it for lost.
	a.pauseLease()
	if err = t.settle(ctx, resp, keep); err == nil {
		err = t.commit(ctx, keep)
	}
	if !t.stands {
		a.resumeLease()
	}
	return err
}

// watchedTx is the transaction that fn gets.
type watchedTx struct {
	pgx.Tx
	closed bool
}

func (w *watchedTx) Commit(ctx context.Context) error {
	w.closed = true
	return w.Tx.Commit(ctx)
}

func (w *watchedTx) Rollback(ctx context.Context) error {
	w.closed = true
	return w.Tx.Rollback(ctx)
}

// ended reports whether fn has ended the transaction, in SQL perhaps, of which pgx knows
// nothing: the record would then be committed by itself, even for what was rolled back.
// A closed one has given its connection away, so that is not looked at.
func (w *watchedTx) ended() bool {
	if w.closed {
		return true
	}
	conn := w.Conn() // nil from a PostgresDB that makes transactions of its own
	return conn != nil && !conn.IsClosed() && conn.PgConn().TxStatus() == txIdle
}

const txIdle = 'I' // as the server says it when it is ready: in no transaction

// settle writes the record, or frees the key, in the transaction. The row stays locked
// until that ends.
func (t *attemptTx) settle(ctx context.Context, resp Response, keep bool) error {
	var owned bool
	var err error
	if keep {
		owned, err = t.store.complete(ctx, t.tx, outcomeOf(t.attempt.claim, resp))
	} else {
		owned, err = t.store.release(ctx, t.tx, t.attempt.claim)
	}
	if err == nil && !owned {
		return t.notOwned()
	}
	return err
}

// notOwned tells a claim that was lost from one that was never in this store, such as that
// of a unit test's MemoryStore. It comes only after the look for the claim: a store of the
// user's that wraps this one is another one by its type, yet has its claims here.
func (t *attemptTx) notOwned() error {
	if store := t.attempt.life.store; store != Store(t.store) {
		return fmt.Errorf("%w: not found in this store: the attempt runs on another one, a %T", ErrClaimLost, store)
	}
	return ErrClaimLost
}

// commit commits, or finds out what became of a commit whose reply was lost.
func (t *attemptTx) commit(ctx context.Context, keep bool) error {
	verdict := recorded
	if !keep {
		verdict = freed
	}
	err := t.tx.Commit(ctx)
	var refused *pgconn.PgError
	switch {
	case err == nil:
		t.conclude(verdict, nil)
		return nil
	case errors.Is(err, pgx.ErrTxCommitRollback), errors.As(err, &refused) && refused.Severity == "ERROR":
		return err // the server's own answer: it has rolled back
	}

	var stands bool
	askErr := t.attempt.life.persist(context.WithoutCancel(ctx), neverHopeless, func(ctx context.Context) (err error) {
		stands, err = t.store.settledBy(ctx, t.attempt.claim, keep)
		return err
	})
	switch {
	case askErr != nil:
		unknown := fmt.Errorf("%w: outcome of the commit unknown: %w", ErrUnavailable, errors.Join(err, askErr))
		t.conclude(uncertain, unknown)
		return unknown
	case stands:
		t.conclude(verdict, nil)
		return nil
	default:
		return err
	}
}

// settledBy reports whether a transaction that settled c was committed. It waits for the
// row's lock, which that transaction holds to its end, so that the answer stays true.
func (s *PostgresStore) settledBy(ctx context.Context, c Claim, keep bool) (stands bool, err error) {
	err = again(ctx, func() error {
		if keep {
			stands, err = s.completed(ctx, s.db, c)
			return err
		}
		var owner pgtype.UUID
		found, err := matched(s.db.QueryRow(ctx, s.sql.owner, uuidOf(c.Key.id())).Scan(&owner))
		switch {
		case err != nil:
			return err
		case found && owner != uuidOf(c.Token): // freed and taken, or only taken?
			return errTaken
		}
		stands = !found
		return nil
	})
	return stands, err
}

var errTaken = errors.New("the key is another attempt's by now")

// conclude makes the outcome final.
func (t *attemptTx) conclude(v verdict, err error) {
	t.stands = true
	t.attempt.finish(v, err)
	if t.attempt.rec != nil {
		t.attempt.rec.seal(errResponseGone)
	}
}

// leave ends the transaction's scope: what does not stand is rolled back, and the
// response is as it was.
func (t *attemptTx) leave() {
	a := t.attempt
	if !t.stands && t.tx != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(a.ctx.values), a.life.storeTimeout)
		defer cancel()
		_ = t.tx.Rollback(ctx) // a connection that cannot roll back is closed by pgx, and so rolled back
	}
	if a.rec != nil {
		a.rec.unhold(t.mark, !t.stands)
	}
	a.leaveTx()
}
