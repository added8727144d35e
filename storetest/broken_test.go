package storetest_test

import (
	"cmp"
	"context"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-2d1e5f61/idempotency"
	"github.com/seed-2d1e5f61/idempotency/storetest"
)

// faults are the faults of a simpleStore, and the checks that fail for each: those whose
// promise it breaks, and no others. With a question mark: those that fail if the
// goroutines meet so, or the machine stalls.
var faults = map[string][]string{
	noFault: nil,

	// Who owns a key.
	"looks, then inserts":            {"OneOwner", "?MutualExclusion", "?OneOwnerAfterExpiry"},
	"a repeated token is a stranger": {"CancelledMidway", "RepeatedToken"},
	"the caller's fingerprint":       {"Fingerprint"},
	"unfenced Extend":                {"FenceExtend", "Resolve", "ZombieAcrossExpiry"},
	"unfenced Complete": {
		"CompleteIsFinal", "FenceComplete", "Resolve", "TakeoverFingerprint",
		"ZombieAcrossExpiry",
	},
	"unfenced Release": {"FenceRelease", "Resolve", "ZombieAcrossExpiry"},
	"lost is a plain error": {
		"CancelledMidway", "CompleteIsFinal", "EndedContext", "FenceComplete",
		"FenceExtend", "FenceRelease", "Release", "Resolve", "TakeoverFingerprint",
		"ZombieAcrossExpiry",
	},
	"Complete again overwrites": {"CompleteIsFinal"},
	"Complete again is refused": {"CompleteIsFinal"},
	"Release repeated succeeds": {
		"CompleteIsFinal", "FenceRelease", "Release", "Resolve", "ZombieAcrossExpiry",
	},
	"Release leaves an interrupted claim": {
		"CancelledMidway", "EndedContext", "FenceComplete", "FenceExtend", "FenceRelease",
		"LateOwner", "MutualExclusion", "Release", "Stuck",
	},
	"a lapsed owner is refused": {"LateOwner", "Resolve", "?Await", "?CompleteIsFinal", "?ExtendRenews"},

	// Until when.
	"the whole lease is left":   {"LeaseLeft"},
	"Extend does nothing":       {"ExtendRenews", "LateOwner", "Resolve"},
	"duplicates move the lease": {"LeaseLeft", "OthersLeaseStays"},
	"lapsed is in flight": {
		"ExtendRenews", "FenceComplete", "FenceExtend", "FenceRelease", "Fingerprint",
		"LateOwner", "OneOwnerAfterCrash", "OthersLeaseStays", "Release", "Resolve",
		"Sweep", "Takeover", "TakeoverFingerprint", "TakeoverKeepsExpiry",
	},
	"takes over unasked": {
		"ExtendRenews", "FenceComplete", "FenceExtend", "FenceRelease", "Fingerprint",
		"LateOwner", "OthersLeaseStays", "Resolve", "Sweep", "Takeover",
	},
	"takes over for any fingerprint": {"Fingerprint", "TakeoverFingerprint"},
	"a takeover is no new attempt": {
		"FenceComplete", "FenceExtend", "FenceRelease", "OneOwnerAfterCrash", "Takeover",
		"TakeoverKeepsExpiry",
	},
	"a takeover is a new record":  {"Takeover"},
	"a takeover moves the expiry": {"TakeoverKeepsExpiry"},
	"never expires": {
		"CompleteKeepsExpiry", "Expiry", "OneOwnerAfterExpiry", "RunPastTTL",
		"TakeoverKeepsExpiry", "ZombieAcrossExpiry",
	},
	"attempts counted across expiry": {"Expiry", "OneOwnerAfterExpiry", "TakeoverKeepsExpiry"},
	"dead records still settle":      {"ZombieAcrossExpiry"},
	"expires under a live lease":     {"LiveLeaseOutlivesTTL", "RunPastTTL", "Sweep", "?Expiry", "?OneOwnerAfterExpiry"},
	"Complete moves the expiry":      {"CompleteKeepsExpiry"},
	"a late run is not kept":         {"RunPastTTL"},
	"the longest TTL is none":        {"LongestTTL"},
	"the longest lease is none":      {"LongestTTL"},

	// What was recorded.
	"body is a JSON string":         {"Body"},
	"body is jsonb":                 {"Body"},
	"body is trimmed":               {"Body"},
	"body is cut at NUL":            {"Body"},
	"body of 64 KiB at most":        {"Body"},
	"header is JSON":                {"Header"},
	"lines are joined":              {"Appended", "Header", "NoSharedMemory"},
	"lines are split":               {"Header"},
	"lines are sorted":              {"Header"},
	"names are canonical":           {"Header"},
	"names without values are lost": {"Header"},
	"marks are lost":                {"Appended", "Fields", "NoSharedMemory"},
	"status is 200":                 {"Fields"},
	"reference is lost":             {"Fields"},
	"omission is lost":              {"Fields"},
	"shares the body":               {"NoSharedMemory"},
	"shares the header":             {"NoSharedMemory"},
	"shares Appended":               {"NoSharedMemory"},

	// Under which key.
	"keys joined":           {"KeysNeverMeet"},
	"tenants share keys":    {"KeysNeverMeet"},
	"keys in lower case":    {"KeysNeverMeet"},
	"keys cut at 255":       {"KeysNeverMeet"},
	"keys made valid UTF-8": {"KeysNeverMeet"},

	// And the rest.
	"ended context leaves a claim under no token": {"CancelledMidway", "EndedContext"},
	"ended context completes another response":    {"EndedContext"},
	"Sweep takes the interrupted":                 {"Sweep"},
	"Sweep takes whatever is past its TTL":        {"Sweep"},
	"Sweep without a limit":                       {"Sweep"},
	"Await misses Release":                        {"Await"},
	"Await misses the end of a lease":             {"Await"},
	"Stuck lists what is live":                    {"Stuck"},
	"Stuck lists the youngest first":              {"Stuck"},
	"Resolve settles what is live":                {"Resolve"},
	"Resolve leaves the token":                    {"Resolve"},
	"unfenced Resolve":                            {"Resolve"},
}

// childVariable says in the process that a test starts what there is to run.
const childVariable = "STORETEST_CHILD"

// inChild runs the test that calls it once more, in a process where it may fail, and
// returns its output.
func inChild(t *testing.T) string {
	t.Helper()
	child := exec.CommandContext(t.Context(), os.Args[0],
		"-test.run=^"+t.Name()+"$", "-test.v", "-test.parallel=32")
	child.Env = append(os.Environ(), childVariable+"="+t.Name())
	out, err := child.CombinedOutput()
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit, "the suite finds nothing wrong")
	return string(out)
}

func isChild(t *testing.T) bool { return os.Getenv(childVariable) == t.Name() }

func TestBrokenStores(t *testing.T) {
	t.Parallel()
	if isChild(t) {
		for fault := range faults {
			t.Run(fault, func(t *testing.T) {
				t.Parallel()
				storetest.Run(t, func(*testing.T) idempotency.Store { return newSimpleStore(fault) })
			})
		}
		return
	}
	out := inChild(t)
	checks := func(result, fault string) (names []string) {
		name := regexp.QuoteMeta(strings.ReplaceAll(cmp.Or(fault, "#00"), " ", "_"))
		for _, line := range regexp.MustCompile(`--- `+result+`: TestBrokenStores/`+name+`/(\S+)`).FindAllStringSubmatch(out, -1) {
			names = append(names, line[1])
		}
		return names
	}
	for fault, want := range faults {
		got := slices.DeleteFunc(checks("FAIL", fault), func(check string) bool { return slices.Contains(want, "?"+check) })
		notJudged := checks("SKIP", fault) // the machine was too slow
		want = slices.DeleteFunc(slices.Clone(want), func(check string) bool {
			return check[0] == '?' || slices.Contains(notJudged, check)
		})
		assert.ElementsMatch(t, want, got, "the checks that fail when %q", fault)
	}
	if t.Failed() {
		for _, line := range regexp.MustCompile(`(?m)^(=== NAME|    [^-]).*$`).FindAllString(out, -1) {
			t.Log(line)
		}
	}
}

// A failure names the promise, what breaking it costs, and what was found.
func TestFailureSaysWhatItCosts(t *testing.T) {
	t.Parallel()
	if isChild(t) {
		storetest.Run(t, func(*testing.T) idempotency.Store { return newSimpleStore("unfenced Release") })
		return
	}
	out := inChild(t)
	require.Contains(t, out, "promise: Release is ErrClaimLost, and changes nothing, unless the token owns the key")
	require.Contains(t, out, "or else: an attempt that stalled frees the key under its successor")
	require.Contains(t, out, "found:   with another token on a live claim, Release says <nil>; want ErrClaimLost")
}

// deafStore answers nothing and listens to no context.
type deafStore struct{}

func (deafStore) Reserve(context.Context, idempotency.Claim) (idempotency.Record, error) { select {} }
func (deafStore) Extend(context.Context, idempotency.Claim) error                        { select {} }
func (deafStore) Complete(context.Context, idempotency.Claim, idempotency.Response) error {
	select {}
}
func (deafStore) Release(context.Context, idempotency.Claim) error { select {} }

// A store that hangs fails its checks one by one, and does not hang the suite.
func TestHangingStore(t *testing.T) {
	t.Parallel()
	if isChild(t) {
		storetest.SetLimits(3*time.Second, 50*time.Millisecond)
		storetest.Run(t, func(*testing.T) idempotency.Store { return deafStore{} })
		return
	}
	out := inChild(t)
	checks := len(regexp.MustCompile(`(?m)^=== RUN +TestHangingStore/`).FindAllString(out, -1))
	hung := len(regexp.MustCompile(`has not returned \S+ after its context ended`).FindAllString(out, -1))
	skipped := len(regexp.MustCompile(`--- SKIP: TestHangingStore/`).FindAllString(out, -1))
	require.Equal(t, 4, skipped, "Sweep, Await, Stuck and Resolve, which it does not have")
	require.Equal(t, checks-skipped, hung, out)
}
