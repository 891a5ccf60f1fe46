-- Before every script: a handle that begins to wait, and one that waits no more.
--
-- Keys of a slot, each after its prefix: 'b' + id a branch, 'h' + id its handle, 'B' branches by last use,
-- 'H' handles by deadline, 'P' tokens ('t' + node) and handles ('n' + node) that wait on each decode node,
-- 'w' + finish + node handles by the time they began to wait.

local call = redis.call

local function enter(prefix, id, since, trace_ttl_ms, h)
    call('ZADD', prefix .. 'H', h.deadline, id)
    call('ZADD', prefix .. 'w' .. h.finish .. h.decode, since, id)
    call('HINCRBY', prefix .. 'P', 't' .. h.decode, h.tokens)
    call('HINCRBY', prefix .. 'P', 'n' .. h.decode, 1)
    for _, name in ipairs({'H', 'P', 'w' .. h.finish .. h.decode}) do
        call('PEXPIRE', prefix .. name, 2 * trace_ttl_ms)
    end
end

local function wait(prefix, id, now, trace_ttl_ms, h)
    call('HSET', prefix .. 'b' .. id, 'd', h.deadline, 'ht', h.tokens, 'hp', h.prompt_tokens, 'dn', h.decode,
        'f', h.finish, 'w', now)
    call('SET', prefix .. 'h' .. id, h.value, 'PX', h.ttl_ms)
    enter(prefix, id, now, trace_ttl_ms, h)
end

-- Absences: 0 no handle, 1 expired, 2 small gain, 3 released. Returns 1 where there was one, and its value, where
-- the server still has that.
local function done(prefix, id, absence)
    local at = prefix .. 'b' .. id
    local f = call('HMGET', at, 'ht', 'dn', 'f')
    local value = f[2] and call('GET', prefix .. 'h' .. id)
    call('DEL', prefix .. 'h' .. id)
    if f[2] then
        call('HINCRBY', prefix .. 'P', 't' .. f[2], -tonumber(f[1]))
        if call('HINCRBY', prefix .. 'P', 'n' .. f[2], -1) <= 0 then
            call('HDEL', prefix .. 'P', 't' .. f[2], 'n' .. f[2])
        end
        call('ZREM', prefix .. 'w' .. f[3] .. f[2], id)
        call('HDEL', at, 'd', 'ht', 'hp', 'dn', 'f', 'w')
        call('HSET', at, 'a', absence)
    end
    return call('ZREM', prefix .. 'H', id), value
end

