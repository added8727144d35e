-- ARGV: token, lease. Returns 1, or 0 if the token does not own the key.

local r = redis.call('HMGET', KEYS[1], 'token', 'expires', 'status')
if r[1] ~= ARGV[1] or r[3] then
	return 0
end
hold(ARGV[2], r[2])
return 1
