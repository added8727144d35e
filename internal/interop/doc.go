// Package interop has clients and routers that others wrote meet the payments example
// and the middleware. It is a module of its own, so that nothing of theirs is a
// dependency of the library.
package interop
