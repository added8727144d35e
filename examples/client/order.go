package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/seed-2d1e5f61/idempotency"
)

// order is what a state file holds: what to pay, the key to pay it under, and the
// charge once it is known.
type order struct {
	Key      string    `json:"key"`
	URL      string    `json:"url"`
	Amount   int64     `json:"amount"`
	Currency string    `json:"currency"`
	Source   string    `json:"source"`
	Created  time.Time `json:"created"`
	Charge   *charge   `json:"charge,omitempty"`
}

// keyLife is how long an order is tried under its key: a while less than the day for
// which the service remembers it. Later the same request would be a new charge.
const keyLife = 23 * time.Hour

// openOrder returns the order in path, which has to be the wanted one, or makes it the
// wanted one under a new key. When it returns, the key survives a crash of the machine.
func openOrder(path string, wanted order) (order, error) {
	wanted.Key, wanted.Created = idempotency.NewKey(), time.Now().UTC()
	if err := wanted.create(path); err != nil && !errors.Is(err, fs.ErrExist) {
		return order{}, err
	}
	// The order in the file counts: an earlier run or another process was first.
	o, err := load(path)
	if err != nil {
		return order{}, err
	}
	if o.URL != wanted.URL || o.Amount != wanted.Amount || o.Currency != wanted.Currency || o.Source != wanted.Source {
		return order{}, fmt.Errorf("%s is an order of %d %s from %s at %s: finish it with the same flags, or choose another -state",
			path, o.Amount, o.Currency, o.Source, o.URL)
	}
	if o.Charge == nil && time.Since(o.Created) > keyLife {
		return order{}, fmt.Errorf("%s is from %s, and the service may have forgotten its key: look there whether it was charged",
			path, o.Created.Format(time.DateTime))
	}
	// Also for an order that was there: who made it may have died before this line.
	return o, syncDir(filepath.Dir(path))
}

func load(path string) (order, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return order{}, err
	}
	var o order
	if err := json.Unmarshal(data, &o); err != nil || o.Key == "" {
		return order{}, fmt.Errorf("%s: not an order of this program", path)
	}
	return o, nil
}

// create fails with fs.ErrExist if path exists: a link, unlike a rename, never replaces
// a file. A reader sees the whole order or none.
func (o order) create(path string) error { return o.write(path, os.Link) }

// replace leaves either the old order or the new one, whatever happens meanwhile.
func (o order) replace(path string) error { return o.write(path, os.Rename) }

func (o order) write(path string, publish func(from, to string) error) error {
	data, err := json.MarshalIndent(o, "", "\t")
	if err != nil {
		return err
	}
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, filepath.Base(path)+".tmp*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(append(data, '\n'))
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := publish(f.Name(), path); err != nil {
		return err
	}
	return syncDir(dir)
}

// syncDir makes a file's name as durable as its content.
func syncDir(dir string) error {
	if runtime.GOOS == "windows" {
		return nil // it flushes no directories
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
