#!/usr/bin/env bash
# Checks and tests every module of the repository, against servers of its own that end
# with it. Several may run at once.
#
#   scripts/test.sh [arguments]    go test's own arguments go with every module's tests
#   scripts/test.sh -- command     that command alone, with PostgreSQL in DATABASE_URL
#                                  (unless it is set); nothing can be typed into it
#
# What is missing and cannot be done without is installed, as root or through sudo:
# PostgreSQL, PgBouncer, Redis, and a C compiler for the race detector.
set -euo pipefail
cd "$(dirname "$0")/.."

dir=    # the servers' files
owner=  # who runs the servers: they refuse to run as root
child=  # the process group that the tests run in

say() { printf '%s\n' "$*" >&2; }

cleanup() {
	trap - EXIT
	trap kill_child INT TERM
	end_child TERM
	[ -n "$dir" ] || return 0
	stop_pgbouncer
	stop_postgres
	rm -rf "$dir"
}

# interrupted passes a signal on to what runs and waits for it, so that the servers stop
# behind their clients. A second signal ends it at once.
interrupted() {
	trap kill_child INT TERM
	end_child "$1"
	exit "$2"
}

# end_child waits for the command for as long as that takes, and for what it has started
# and left behind for five seconds.
end_child() {
	[ -n "$child" ] || return 0
	kill -"$1" -- "-$child" 2>/dev/null || true
	wait "$child" || true
	for _ in {1..50}; do
		kill -0 -- "-$child" 2>/dev/null || break
		sleep 0.1
	done
	kill_child
	child=
}

kill_child() {
	[ -z "$child" ] || kill -KILL -- "-$child" 2>/dev/null || true
}

trap cleanup EXIT
trap 'interrupted INT 130' INT
trap 'interrupted TERM 143' TERM

# bring COMMAND PACKAGES installs Debian packages where apt-get can, and otherwise says
# what is missing.
bring() {
	local command=$1 sudo=
	shift
	[ "$(id -u)" = 0 ] || sudo=sudo
	if command -v apt-get >/dev/null && { [ -z "$sudo" ] || command -v sudo >/dev/null; }; then
		say "installing $*"
		$sudo apt-get update -q >&2 || true
		# In run level 1 a package starts no service of its own.
		$sudo env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 \
			apt-get install -q -y --no-install-recommends "$@" >&2
	elif command -v brew >/dev/null; then
		say "installing $command"
		brew install -q "$command" >&2
	else
		say "$command is needed: install it, or put it on PATH"
		exit 1
	fi
}

make_dir() {
	if [ "$(id -u)" = 0 ]; then
		owner=nobody
		! id postgres >/dev/null 2>&1 || owner=postgres
	fi
	dir=$(mktemp -d /tmp/idempotency-test.XXXXXX)
	[ -z "$owner" ] || chown "$owner" "$dir"
}

as_owner() (
	cd "$dir"
	if [ -n "$owner" ]; then
		exec runuser -u "$owner" -- "$@"
	fi
	exec "$@"
)

# start COMMAND tries ports below the range that the system gives out itself, until
# COMMAND PORT comes up on one.
start() {
	for _ in 1 2 3 4 5 6 7 8 9 10; do
		port=$((10000 + RANDOM % 22000))
		if "$1" "$port"; then
			return
		fi
	done
	cat "$dir"/*.log >&2 || true
	say "$1 failed"
	exit 1
}

# ---- PostgreSQL

# find_postgres finds the newest server: Debian and Homebrew keep it off PATH.
find_postgres() {
	local initdb
	initdb=$(ls -d /usr/lib/postgresql/*/bin/initdb /usr/pgsql-*/bin/initdb \
		/opt/homebrew/opt/postgresql*/bin/initdb /usr/local/opt/postgresql*/bin/initdb \
		2>/dev/null | sort -V | tail -n 1) || true
	[ -n "$initdb" ] || initdb=$(command -v initdb) || return 1
	pg=${initdb%/*}
}

start_postgres() {
	as_owner "$pg/pg_ctl" start -s -w -D "$dir/data" -l "$dir/postgres.log" \
		-o "-p $1" >/dev/null 2>&1
}

stop_postgres() {
	[ ! -f "$dir/data/postmaster.pid" ] ||
		as_owner "$pg/pg_ctl" stop -s -m immediate -D "$dir/data" || true
}

bring_postgres() {
	find_postgres || { bring postgresql postgresql && find_postgres; }
	[ -n "$dir" ] || make_dir

	password=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
	printf '%s\n' "$password" >"$dir/password"
	[ -z "$owner" ] || chown "$owner" "$dir/password"
	as_owner "$pg/initdb" --no-sync --pgdata="$dir/data" --username=postgres --encoding=UTF8 \
		--locale=C --auth=password --pwfile="$dir/password" >"$dir/initdb.log" 2>&1 ||
		{ cat "$dir/initdb.log" >&2; exit 1; }
	as_owner tee -a "$dir/data/postgresql.conf" >/dev/null <<-CONF
		listen_addresses = '127.0.0.1'
		unix_socket_directories = ''
		max_connections = 300
	CONF
	start start_postgres
	postgres_port=$port
	export IDEMPOTENCY_TEST_POSTGRES_BIN=$pg # for tests that break a server of their own
	export IDEMPOTENCY_TEST_DATABASE_URL="postgres://postgres:$password@127.0.0.1:$port/postgres?sslmode=disable"
}

# ---- PgBouncer, in front of it in transaction mode

find_pgbouncer() {
	pgbouncer=$(PATH=$PATH:/usr/sbin command -v pgbouncer)
}

start_pgbouncer() {
	as_owner tee "$dir/pgbouncer.ini" >/dev/null <<-CONF
		[databases]
		* = host=127.0.0.1 port=$postgres_port
		[pgbouncer]
		listen_addr = 127.0.0.1
		listen_port = $1
		unix_socket_dir =
		auth_type = md5
		auth_file = $dir/users.txt
		pool_mode = transaction
		default_pool_size = 8
		max_client_conn = 300
		logfile = $dir/pgbouncer.log
		pidfile = $dir/pgbouncer.pid
	CONF
	as_owner "$pgbouncer" -q -d "$dir/pgbouncer.ini" >/dev/null 2>&1
	for _ in {1..100}; do # it goes to the background before it knows that the port is free
		if [ -f "$dir/pgbouncer.pid" ] && grep -qs "listening on 127.0.0.1:$1" "$dir/pgbouncer.log"; then
			return
		fi
		! grep -qs FATAL "$dir/pgbouncer.log" || break
		sleep 0.05
	done
	mv "$dir/pgbouncer.log" "$dir/pgbouncer.$1.log"
	return 1
}

stop_pgbouncer() {
	[ ! -f "$dir/pgbouncer.pid" ] || kill -KILL "$(cat "$dir/pgbouncer.pid")" || true
}

bring_pgbouncer() {
	find_pgbouncer || { bring pgbouncer pgbouncer && find_pgbouncer; }
	as_owner tee "$dir/users.txt" >/dev/null <<<"\"postgres\" \"$password\""
	start start_pgbouncer
	export IDEMPOTENCY_TEST_PGBOUNCER_URL="postgres://postgres:$password@127.0.0.1:$port/postgres?sslmode=disable"
}

# ---- Redis, of which tests start servers of their own

bring_redis() {
	command -v redis-server >/dev/null || bring redis redis-server
}

# ---- the checks

# run starts a command in a process group of its own, so that a signal to this script
# ends all of it.
run() {
	set -m
	"$@" &
	child=$!
	set +m
	wait "$child"
	child=
}

check_format() {
	local unformatted
	unformatted=$(gofmt -l .)
	[ -z "$unformatted" ] || { say "not formatted with gofmt:"; say "$unformatted"; exit 1; }
}

check_module() {
	say "== $1"
	(cd "$1" && go vet ./...)
	if command -v staticcheck >/dev/null; then
		(cd "$1" && staticcheck ./...)
	fi
}

test_module() {
	cd "$1"
	shift
	exec go test -race -shuffle=on "$@" ./...
}

if [ "${1:-}" = -- ]; then
	shift
	bring_postgres
	bring_pgbouncer
	bring_redis
	export DATABASE_URL="${DATABASE_URL:-$IDEMPOTENCY_TEST_DATABASE_URL}"
	[ ! -t 0 ] || exec </dev/null # it is not the terminal's own process group that reads
	run "$@"
	exit
fi

command -v cc >/dev/null || bring gcc gcc libc6-dev # the race detector needs it
check_format
bring_postgres
bring_pgbouncer
bring_redis
find . -name go.mod | sort | while read -r mod; do dirname "$mod"; done >"$dir/modules"
while read -r module; do
	check_module "$module"
	run test_module "$module" "$@"
done <"$dir/modules"

# The race detector has allocations of its own: they are counted without it.
[ $# != 0 ] || run go test -run Allocations ./...
