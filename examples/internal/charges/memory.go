package charges

import (
	"context"
	"slices"
	"sync"
	"time"
)

// MemoryLedger is a [Ledger] for one process. Its zero value is ready.
type MemoryLedger struct {
	mu      sync.Mutex
	charges []Charge // the oldest first
}

// Add implements [Ledger].
func (l *MemoryLedger) Add(_ context.Context, c Charge, respond func()) error {
	if err := l.add(c); err != nil {
		return err
	}
	respond()
	return nil
}

func (l *MemoryLedger) add(c Charge) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, booked := range l.charges {
		if booked.ID == c.ID {
			return nil
		}
		if c.OrderID != "" && booked.Tenant == c.Tenant && booked.OrderID == c.OrderID {
			return ErrOrderCharged
		}
	}
	l.charges = append(l.charges, c)
	return nil
}

// Find implements [Ledger].
func (l *MemoryLedger) Find(_ context.Context, tenant, id string) (Charge, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.IndexFunc(l.charges, func(c Charge) bool { return c.Tenant == tenant && c.ID == id })
	if i < 0 {
		return Charge{}, ErrNotFound
	}
	return l.charges[i], nil
}

// List implements [Ledger].
func (l *MemoryLedger) List(_ context.Context, tenant string) ([]Charge, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := []Charge{}
	for _, c := range slices.Backward(l.charges) {
		if c.Tenant == tenant {
			list = append(list, c)
		}
	}
	return list, nil
}

// MemoryNetwork is a [Network] for one process.
type MemoryNetwork struct {
	Latency time.Duration // of each charge

	mu      sync.Mutex
	charges map[string]Charge
}

// Charge implements [Network].
func (n *MemoryNetwork) Charge(ctx context.Context, c Charge, source string) (Charge, error) {
	if err := swipe(ctx, n.Latency, source); err != nil {
		return Charge{}, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if first, ok := n.charges[c.ID]; ok {
		if !sameMoney(first, c) {
			return Charge{}, ErrIDReused
		}
		return first, nil
	}
	if n.charges == nil {
		n.charges = make(map[string]Charge)
	}
	n.charges[c.ID] = c
	return c, nil
}

// Refund implements [Network].
func (n *MemoryNetwork) Refund(_ context.Context, id string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.charges, id)
	return nil
}
