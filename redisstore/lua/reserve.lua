-- ARGV: token, fingerprint, lease, ttl, rerun (1 or 0), tenant, endpoint, key.
-- Returns state, attempt, milliseconds of lease left, created, fingerprint and, for a
-- completed record of the same fingerprint, status, header, body, ref, omitted.

local ACQUIRED, IN_FLIGHT, INTERRUPTED, COMPLETED = 1, 2, 3, 4
local token, fingerprint, length, ttl, rerun = unpack(ARGV, 1, 5)

local r = redis.call('HMGET', KEYS[1],
	'token', 'fingerprint', 'attempt', 'created', 'expires', 'lease', 'status')
local owner, first, attempt, created, expires, lease, status = unpack(r, 1, 7)

if not owner then
	created, expires, lease = after(0), after(ttl), after(length)
	redis.call('HSET', KEYS[1], 'token', token, 'fingerprint', fingerprint,
		'attempt', 1, 'created', created, 'expires', expires, 'lease', lease,
		'tenant', ARGV[6], 'endpoint', ARGV[7], 'key', ARGV[8])
	keep(expires, lease)
	return {ACQUIRED, 1, tonumber(length), tonumber(created), fingerprint}
end

attempt, created = tonumber(attempt), tonumber(created)

if status then
	if first ~= fingerprint then
		return {COMPLETED, attempt, 0, created, first}
	end
	local response = redis.call('HMGET', KEYS[1], 'header', 'body', 'ref', 'omitted')
	return {COMPLETED, attempt, 0, created, first, tonumber(status), unpack(response, 1, 4)}
end

if owner == token then
	hold(length, expires)
	return {ACQUIRED, attempt, tonumber(length), created, first}
end

local left = lease - now
if left > 0 then
	return {IN_FLIGHT, attempt, left, created, first}
end
if rerun == '1' and first == fingerprint then
	attempt = redis.call('HINCRBY', KEYS[1], 'attempt', 1)
	redis.call('HSET', KEYS[1], 'token', token)
	hold(length, expires)
	return {ACQUIRED, attempt, tonumber(length), created, first}
end
return {INTERRUPTED, attempt, 0, created, first}
