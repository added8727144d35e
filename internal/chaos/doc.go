// Package chaos breaks everything at once around the payments example, and counts what
// was charged: processes are killed, the database is restarted without a shutdown,
// connections are cut, replies to commits are lost. Its tests run for a few seconds;
//
//	./scripts/test.sh -- go test ./internal/chaos -run Chaos -v -chaos.for 10m -chaos.seed 1
//
// runs longer, or again as before.
package chaos
