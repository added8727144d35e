CREATE TABLE IF NOT EXISTS {{table}} (
	-- The first 16 bytes of SHA-256 over tenant, endpoint and key, each behind its
	-- length: in hex, what logs and events show. The three stand beside it for people.
	id          uuid CONSTRAINT {{pkey}} PRIMARY KEY,
	tenant      text NOT NULL,
	endpoint    text NOT NULL,
	key         text NOT NULL,
	fingerprint bytea NOT NULL,
	-- The attempt that owns the key, or recorded its outcome.
	token       uuid NOT NULL,
	attempt     integer NOT NULL,
	created_at  timestamptz NOT NULL,
	lease_until timestamptz NOT NULL,
	expires_at  timestamptz NOT NULL,
	-- NULL: in progress. Then lease_until is its end, and so in the past.
	completed_at timestamptz,
	status      integer,
	header      bytea,
	body        bytea,
	ref         bytea,
	omitted     boolean NOT NULL DEFAULT false
) WITH (
	-- Room for the outcome on the page of its claim: a HOT update, no index is touched.
	-- Measured with bodies of 200 bytes: callers one by one have a HOT share of 0.98 at
	-- 50 too, but a crowd of 64 has 0.56 at 50, 0.71 at 40 and 0.88 at 30, where the
	-- table of the former is nearly twice as large.
	fillfactor = 40,
	autovacuum_vacuum_scale_factor = 0.01
);

-- Completion changes no indexed column, nor one in an index's predicate: keep it so, or
-- it is no HOT update any more.
CREATE INDEX IF NOT EXISTS {{expires}} ON {{table}} (expires_at);

DO $$
BEGIN
	EXECUTE 'ALTER TABLE {{table}} ALTER COLUMN body SET COMPRESSION lz4';
EXCEPTION WHEN feature_not_supported OR syntax_error THEN
	NULL; -- a server that was built without lz4, or is older than 14
END
$$;
