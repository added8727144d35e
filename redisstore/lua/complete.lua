-- ARGV: token, ttl, channel, then status, header, body, ref, omitted (1 or '').
-- Returns 1, or 0 if the token does not own the key.

local r = redis.call('HMGET', KEYS[1], 'token', 'expires', 'lease', 'status', 'waited')
local owner, expires, lease, status, waited = unpack(r, 1, 5)
if owner ~= ARGV[1] then
	return 0
end
if status then
	-- Repeated: the first response stays. The write changes nothing; it is there because
	-- WAIT counts the replicas that have this connection's last write, and the first
	-- Complete may have come over another connection.
	redis.call('PEXPIREAT', KEYS[1], expires)
	return 1
end

local deletion = math.max(expires, lease)
if tonumber(expires) <= now then -- a live lease has outlasted the TTL
	expires = after(ARGV[2])
end
local fields = {'expires', expires, 'status', ARGV[4]}
for i, name in ipairs({'header', 'body', 'ref', 'omitted'}) do
	local value = ARGV[4 + i]
	if value ~= '' then
		fields[#fields + 1] = name
		fields[#fields + 1] = value
	end
end
redis.call('HSET', KEYS[1], unpack(fields))
if deletion ~= tonumber(expires) then
	redis.call('PEXPIREAT', KEYS[1], expires)
end
if waited then
	wake(ARGV[3])
end
return 1
