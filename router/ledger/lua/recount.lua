-- Whether what waits in a slot adds up, and if not, sums and queues anew.
--
-- Each handle that waits stands in 'H', in a queue and in the sums. A server that is short of memory drops whole keys,
-- branches among them, and then these do not agree any more.
--
-- KEYS  1 the sums
-- ARGV  1 prefix of all keys of this slot, 2 now_s, 3 trace ttl in ms
-- Reply {expired handles, 1 where the sums were made anew}

local prefix, now, ttl_ms = ARGV[1], ARGV[2], ARGV[3]
local expired = 0
for _, late in ipairs(call('ZRANGEBYSCORE', prefix .. 'H', '-inf', now, 'LIMIT', 0, 1000)) do
    expired = expired + (done(prefix, late, 1))
end

local sums, counted, queued, queues = call('HGETALL', KEYS[1]), 0, 0, {}
for at = 1, #sums, 2 do
    if string.sub(sums[at], 1, 1) == 'n' then
        counted = counted + tonumber(sums[at + 1])
        for _, finish in ipairs({'-', 't', 's', 'l'}) do
            local queue = prefix .. 'w' .. finish .. string.sub(sums[at], 2)
            queues[#queues + 1] = queue
            queued = queued + call('ZCARD', queue)
        end
    end
end
if counted == call('ZCARD', prefix .. 'H') and counted == queued then return {expired, 0} end

local ids = {}
for _, key in ipairs({prefix .. 'H', unpack(queues)}) do
    for _, id in ipairs(call('ZRANGE', key, 0, -1)) do ids[id] = true end
    call('DEL', key)
end
call('DEL', KEYS[1])
for id in pairs(ids) do
    local f = call('HMGET', prefix .. 'b' .. id, 'd', 'ht', 'dn', 'f', 'w')
    if f[1] and tonumber(f[1]) > tonumber(now) then
        enter(prefix, id, f[5], ttl_ms, {deadline = f[1], tokens = f[2], decode = f[3], finish = f[4]})
    end
end
return {expired, 1}
