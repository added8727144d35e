-- Returns for how many milliseconds the claim is live, 0 without a live claim, and asks
-- for the end of a live one to be announced. A server that refuses the write (full,
-- read-only) still answers; the caller looks by itself now and then.

local r = redis.call('HMGET', KEYS[1], 'lease', 'status', 'waited')
local left = (r[1] or 0) - now
if left <= 0 or r[2] then
	return 0
end
if not r[3] then
	redis.pcall('HSET', KEYS[1], 'waited', 1)
end
return left
