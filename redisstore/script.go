package redisstore

import (
	"context"
	"embed"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-2d1e5f61/idempotency"
	"github.com/seed-2d1e5f61/idempotency/internal/headercode"
)

// script is one operation on one record. A server that does not know it yet, or has
// had its scripts flushed, is sent the text.
type script struct {
	name       string
	replicated bool // with Config.MinReplicas it counts only when replicas have it
	*redis.Script
}

//go:embed lua/*.lua
var lua embed.FS

var (
	reserve  = load("reserve", true)
	extend   = load("extend", false)
	complete = load("complete", true)
	release  = load("release", false)
	await    = load("await", false)
)

func load(name string, replicated bool) script {
	return script{name, replicated, redis.NewScript(source("common") + source(name))}
}

func source(name string) string {
	text, err := lua.ReadFile("lua/" + name + ".lua")
	if err != nil {
		panic(err) // the files are part of the program
	}
	return string(text)
}

// eval runs sc on key's record. short is nil, or says that fewer replicas than wanted
// have what sc wrote; it means nothing when sc wrote nothing.
func (s *Store) eval(ctx context.Context, sc script, key idempotency.Key, args ...any) (reply any, short, err error) {
	name := s.name(key)
	if sc.replicated && s.cfg.MinReplicas > 0 {
		return s.evalAndWait(ctx, sc, name, args)
	}
	reply, err = sc.Run(ctx, s.client, []string{name}, args...).Result()
	return reply, nil, err
}

var errReply = errors.New("reply of an unknown form")

// parseRecord reads the reply of the reserve script.
func parseRecord(reply any) (idempotency.Record, error) {
	fields, ok := reply.([]any)
	if !ok || len(fields) < 5 {
		return idempotency.Record{}, errReply
	}
	rec := idempotency.Record{
		State:     idempotency.State(number(fields[0])),
		Attempt:   int(number(fields[1])),
		LeaseLeft: duration(number(fields[2])),
		CreatedAt: time.UnixMilli(number(fields[3])),
	}
	if copy(rec.Fingerprint[:], text(fields[4])) != len(rec.Fingerprint) {
		return idempotency.Record{}, errReply
	}
	if len(fields) < 10 {
		return rec, nil
	}
	header, appended, err := headercode.DecodeString(text(fields[6]))
	if err != nil {
		return idempotency.Record{}, err
	}
	rec.Response = idempotency.Response{
		Status:   int(number(fields[5])),
		Header:   header,
		Appended: appended,
		Body:     []byte(text(fields[7])),
		Ref:      text(fields[8]),
		Omitted:  text(fields[9]) != "",
	}
	return rec, nil
}

func number(field any) int64 {
	n, _ := field.(int64)
	return n
}

// text is "" for a field that the record does not have.
func text(field any) string {
	s, _ := field.(string)
	return s
}
