package main

import (
	"fmt"
	"time"

	fiber2 "github.com/gofiber/fiber/v2"
	idempotency2 "github.com/gofiber/fiber/v2/middleware/idempotency"
	fiber3 "github.com/gofiber/fiber/v3"
	idempotency3 "github.com/gofiber/fiber/v3/middleware/idempotency"
	"github.com/gofiber/storage/memory/v2"
	"github.com/valyala/fasthttp"

	"github.com/seed-2d1e5f61/idempotency/benchmarks/internal/load"
)

// The peers run with their defaults. The storage is the published form of the one that
// they have built in; unlike that it can be closed.

func openFiber2(protected bool) (post, func(), error) {
	app := fiber2.New(fiber2.Config{DisableStartupMessage: true})
	storage := memory.New(memory.Config{GCInterval: 15 * time.Minute})
	handlers := []fiber2.Handler{func(c *fiber2.Ctx) error {
		_ = c.Body()
		c.Set("Content-Type", "application/json")
		return c.Status(load.Status).Send(load.ResponseBody)
	}}
	if protected {
		handlers = append([]fiber2.Handler{idempotency2.New(idempotency2.Config{Storage: storage})}, handlers...)
	}
	app.Post("/charges", handlers...)
	return fastPost(app.Handler()), func() { _ = storage.Close() }, nil
}

func openFiber3(protected bool) (post, func(), error) {
	app := fiber3.New()
	storage := memory.New(memory.Config{GCInterval: 15 * time.Minute})
	handler := func(c fiber3.Ctx) error {
		_ = c.Body()
		c.Set("Content-Type", "application/json")
		return c.Status(load.Status).Send(load.ResponseBody)
	}
	if protected {
		app.Post("/charges", idempotency3.New(idempotency3.Config{Storage: storage}), handler)
	} else {
		app.Post("/charges", handler)
	}
	return fastPost(app.Handler()), func() { _ = storage.Close() }, nil
}

// fastPost sends requests to a handler as a connection would, one after the other, with
// no network in between. These peers do not mark a replay.
func fastPost(handler fasthttp.RequestHandler) post {
	ctx := new(fasthttp.RequestCtx)
	ctx.Request.Header.SetMethod("POST")
	ctx.Request.SetRequestURI("/charges")
	ctx.Request.Header.SetContentType("application/json")
	ctx.Request.SetBodyRaw(load.RequestBody)
	return func(key string, _ bool) error {
		ctx.Response.Reset()
		ctx.ResetUserValues()
		ctx.Request.Header.Set("X-Idempotency-Key", key)
		handler(ctx)
		if got := ctx.Response.StatusCode(); got != load.Status || len(ctx.Response.Body()) != len(load.ResponseBody) {
			return fmt.Errorf("answered %d with %d bytes", got, len(ctx.Response.Body()))
		}
		return nil
	}
}
