-- ARGV: token, channel. Returns 1, or 0 if the token does not own the key in progress.

local r = redis.call('HMGET', KEYS[1], 'token', 'status', 'waited')
if r[1] ~= ARGV[1] or r[2] then
	return 0
end
redis.call('DEL', KEYS[1])
if r[3] then
	wake(ARGV[2])
end
return 1
