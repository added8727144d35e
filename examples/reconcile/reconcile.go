package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/seed-2d1e5f61/idempotency"
	"github.com/seed-2d1e5f61/idempotency/examples/internal/charges"
)

type reconciler struct {
	store   *idempotency.PostgresStore
	ledger  *charges.PostgresLedger
	network *charges.PostgresNetwork
	out     io.Writer
}

// finding is what became of an interrupted attempt to charge.
type finding struct {
	claim  idempotency.StuckClaim
	id     string          // of the charge that the attempt was to make
	charge *charges.Charge // nil: the card was not charged
	state  string
}

func (r *reconciler) list(ctx context.Context, limit int) error {
	findings, err := r.look(ctx, limit)
	if err != nil {
		return err
	}
	table := tabwriter.NewWriter(r.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "CHARGE\tSTATE\tTENANT\tENDPOINT\tKEY\tATTEMPT\tCREATED\tLAPSED")
	for _, f := range findings {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\n",
			f.id, f.state, f.claim.Key.Tenant, f.claim.Key.Endpoint, f.claim.Key.Value, f.claim.Attempt,
			f.claim.CreatedAt.Format(time.RFC3339), f.claim.LapsedAt.Format(time.RFC3339))
	}
	return table.Flush()
}

// resolve settles the claims of the charges in ids, or all of them if ids is empty.
func (r *reconciler) resolve(ctx context.Context, limit int, ids []string) error {
	findings, err := r.look(ctx, limit)
	if err != nil {
		return err
	}
	missing := slices.Clone(ids)
	for _, f := range findings {
		if len(ids) > 0 && !slices.Contains(ids, f.id) {
			continue
		}
		did, err := r.settle(ctx, f)
		if err != nil {
			return err
		}
		fmt.Fprintf(r.out, "%s: %s: %s\n", f.id, f.state, did)
		missing = slices.DeleteFunc(missing, func(id string) bool { return id == f.id })
	}
	if len(missing) > 0 {
		return fmt.Errorf("not among the interrupted charges: %s", strings.Join(missing, ", "))
	}
	return nil
}

// look finds the interrupted charges, the oldest first, and what became of each.
func (r *reconciler) look(ctx context.Context, limit int) ([]finding, error) {
	stuck, err := r.store.Stuck(ctx, limit)
	if err != nil {
		return nil, err
	}
	var findings []finding
	for _, claim := range stuck {
		if claim.Key.Endpoint != "POST /v1/charges" {
			continue // another operation's, of which this program knows nothing
		}
		f, err := r.lookAt(ctx, claim)
		if err != nil {
			return nil, err
		}
		findings = append(findings, f)
	}
	return findings, nil
}

// lookAt asks the ledger, then the card network: the process may have died after the
// network took the money and before the ledger booked it.
func (r *reconciler) lookAt(ctx context.Context, claim idempotency.StuckClaim) (finding, error) {
	f := finding{claim: claim, id: charges.IDFor(claim.Key), state: "booked"}
	c, err := r.ledger.Find(ctx, claim.Key.Tenant, f.id)
	if errors.Is(err, charges.ErrNotFound) {
		f.state = "charged, not booked"
		c, err = r.network.Find(ctx, f.id)
	}
	if errors.Is(err, charges.ErrNotFound) {
		f.state = "not charged"
		return f, nil
	}
	f.charge = &c
	return f, err
}

// settle gives the client's next retry an answer, and returns what it did. Repeating it
// after a failure halfway does no harm.
func (r *reconciler) settle(ctx context.Context, f finding) (string, error) {
	var resp *idempotency.Response
	did := "key freed, the next retry runs"
	if f.charge != nil {
		err := r.ledger.Add(ctx, *f.charge, func() {})
		switch {
		case errors.Is(err, charges.ErrOrderCharged):
			if err := r.network.Refund(ctx, f.id); err != nil {
				return "", err
			}
			did = "order charged under another key, refunded; " + did
		case err != nil:
			return "", err
		default:
			created := f.charge.Response()
			resp, did = &created, "booked, the next retry is answered 201"
		}
	}
	err := r.store.Resolve(ctx, f.claim.Key, f.claim.Token, resp)
	if errors.Is(err, idempotency.ErrClaimLost) {
		return "left alone: it is running again, or someone else has settled it", nil
	}
	return did, err
}
