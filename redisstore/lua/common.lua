-- Put in front of every script. A record is a hash under KEYS[1]; times are milliseconds
-- by this server's clock. The server deletes a record the moment it is dead (PEXPIREAT
-- at its expiry or the end of its lease, whichever is later), so one that exists is not.

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

-- after returns the instant that is length from now, as text with all its digits.
local function after(length)
	return string.format('%.0f', now + length)
end

-- keep has the server delete the record when it is dead.
local function keep(expires, lease)
	redis.call('PEXPIREAT', KEYS[1], string.format('%.0f', math.max(expires, lease)))
end

-- hold starts the lease anew.
local function hold(length, expires)
	local lease = after(length)
	redis.call('HSET', KEYS[1], 'lease', lease)
	keep(expires, lease)
end

-- wake tells those who wait for KEYS[1]. They also look by themselves now and then, so a
-- server that refuses PUBLISH (an ACL) must not fail a write that has been made.
local function wake(channel)
	redis.pcall('PUBLISH', channel, KEYS[1])
end
