package idempotency

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"
)

// errPanicked is what an event says of a handler that did not return: the panic itself
// goes on to whoever handles it.
var errPanicked = errors.New("idempotency: the handler panicked")

// execution is all that one run of the handler needs, in one allocation.
type execution struct {
	attempt  Attempt
	recorder recorder
	body     bodyReader
	request  http.Request
}

// run calls the handler under the claim, on a context of its own: the client's leaving
// does not end it. However the handler ends, the outcome is recorded before anything
// else happens: before a byte is sent, and before a panic goes on. There is no recover,
// which would cut the stack; a Goexit is met the same way.
func (x *exchange) run(rec Record, asked time.Time) {
	e := new(execution)
	a := &e.attempt
	a.ctx.detach(x.r.Context(), a, x.m.cfg.HandlerTimeout)
	a.cfg, a.rec, a.asked = &x.m.cfg, &e.recorder, x.r
	a.rec.init(x.w, a)
	a.begin(&x.m.life, x.claim, rec, asked)

	e.request = *x.copyRequest(&a.ctx, &e.body)
	returned := false
	defer func() {
		x.handBack(&e.request)
		e.body.Close()
		x.conclude(a, returned)
	}()
	x.next.ServeHTTP(a.rec, &e.request)
	returned = true
}

// conclude records what became of the run, then sends it.
func (x *exchange) conclude(a *Attempt, returned bool) {
	defer a.end() // also if Config.Keep panics: a lease renewed for ever would keep the key
	resp, keep := Response{Status: http.StatusInternalServerError}, true
	if returned {
		a.rec.finish()
		resp, keep = a.outcome()
	} else {
		a.rec.abort()
		keep = x.m.cfg.keeps(resp.Status)
	}
	outcome, err := a.settle(resp, keep)

	event := Event{Outcome: outcome, Status: resp.Status, Attempt: a.number, Err: err}
	final, _ := a.verdict()
	switch {
	case final == uncertain:
		// Whether the transaction stands could not be learned. The retry will meet the
		// truth; this client must not be told either.
		failure := unavailableError(err)
		event.Status, event.Err = failure.statusCode(), failure
		if returned {
			x.fail(failure)
		}
	case !returned:
		if event.Err == nil {
			event.Err = errPanicked
		}
	case !a.rec.streaming:
		a.rec.send()
		a.rec.recycle()
	}
	x.observe(event)
}

// copyRequest gives a handler the request with its body as it came, through body. The
// original stays as it is: the server still looks at its body, to answer Expect:
// 100-continue.
func (x *exchange) copyRequest(ctx context.Context, body *bodyReader) *http.Request {
	request := x.r.WithContext(ctx)
	request.Body = http.NoBody
	if x.body.Len() > 0 {
		body.rest = x.body.Bytes()
		request.Body = body
	}
	return request
}

// handBack returns to the original request what a handler leaves in its own for outer
// layers: the server removes a form's temporary files, loggers read the pattern.
func (x *exchange) handBack(request *http.Request) {
	x.r.MultipartForm, x.r.Pattern = request.MultipartForm, request.Pattern
}

// unavailable ends a request whose reserve failed: nothing was run. With failOpen the
// handler runs all the same, unprotected.
func (x *exchange) unavailable(err error, failOpen bool) {
	if x.left() {
		x.answer(Rejected, Record{}, unavailableError(err))
		return
	}
	log := x.m.life.log().With("key_hash", x.key.hash(), "endpoint", x.key.Endpoint, "error", err)
	if failOpen {
		log.Warn("idempotency: store unavailable, the handler runs unprotected")
		x.runUnprotected(err)
		return
	}
	log.Error("idempotency: store unavailable, nothing was run")
	x.refuse(Unavailable, unavailableError(err))
}

func unavailableError(cause error) *requestError {
	return &requestError{sentinel: ErrUnavailable, cause: cause, retryAfter: retrySoon}
}

// left reports whether the client seems to have left. A server's BaseContext that ends at
// shutdown, or an outer layer, makes it seem so too: what is answered then must be true
// for a client that is still there, and no answer would be an empty 200.
func (x *exchange) left() bool { return errors.Is(x.r.Context().Err(), context.Canceled) }

// refuse answers a request that has no record to be answered from.
func (x *exchange) refuse(outcome Outcome, failure *requestError) {
	if failure.sentinel == errMisuse || failure.status == http.StatusInternalServerError {
		x.m.life.log().Error("idempotency: request refused by a mistake of the service", "endpoint", x.key.Endpoint, "error", failure)
	}
	if x.r.ProtoMajor == 1 && x.body == nil && x.r.Body != nil && x.r.ContentLength != 0 {
		// The rest of the body is not worth reading, so the connection cannot go on.
		x.w.Header().Set("Connection", "close")
	}
	x.answer(outcome, Record{}, failure)
}

// answer sends a failure, and tells it to who observes.
func (x *exchange) answer(outcome Outcome, rec Record, failure *requestError) {
	event := Event{Outcome: outcome, Status: failure.statusCode(), Attempt: rec.Attempt, Err: failure}
	if x.left() && (outcome == Conflict || failure.sentinel == ErrUnavailable) {
		event.Status = 0 // it left before the reserve, or while it waited
	}
	x.fail(failure)
	x.observe(event)
}

func (x *exchange) fail(failure *requestError) {
	failure.docsURL, failure.header = x.m.cfg.DocsURL, x.m.cfg.Header
	if failure.retryAfter > 0 {
		x.w.Header().Set("Retry-After", strconv.Itoa(failure.retryAfter))
	} else {
		x.w.Header().Del("Retry-After") // an outer layer's would say that a retry helps
	}
	x.m.cfg.ErrorHandler(x.w, x.r, failure)
}

func (x *exchange) observe(event Event) {
	if x.m.cfg.Observe == nil {
		return
	}
	event.Tenant, event.Endpoint = x.key.Tenant, x.key.Endpoint
	if x.key.Value != "" {
		event.KeyHash = x.key.hash()
	}
	event.Duration = time.Since(x.arrived)
	x.m.cfg.Observe(x.r.Context(), event)
}
