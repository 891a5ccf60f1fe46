-- The branch of the longest known boundary: its trace, and its handle, taken.
--
-- KEYS  1 the root's index of this generation, 2 of the one before, 3 the trace of a shared beginning,
--       4 branches by last use
-- ARGV  1 prefix of all keys of this slot, 2 now_s, 3 trace ttl in ms, 4 depth of the first boundary given,
--       5 own depth, 6 take share, 7 conversation, 8 boundaries (16 bytes each), 9 their sizes (8 bytes each)
-- Reply {expired handles, trace of a shared beginning or false, or else
--        id, version, turns, depth, relation, absence, trace, handle or false}
-- Relations: 0 extension, 1 regenerated, 2 fork. Absence: -1 where there is a handle.

local prefix, now, ttl_ms = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local first, own, share, conversation = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7]
local last = first + #ARGV[8] / 16 - 1
local expired = 0

local function branch_at(id, key, depth)
    local at = prefix .. 'b' .. id
    local f = call('HMGET', at, 'v', 'n', 'k', 't', 'c', 'a', 'd', 'ht', 'hp', 'pb')
    if not f[1] then return nil end
    local found = {id = id, at = at, version = tonumber(f[1]), turns = tonumber(f[2]), trace = f[4]}
    found.tip = f[3] == key
    found.same = conversation ~= '' and f[5] == conversation
    found.relation = found.tip and (depth < last and 0 or 1) or 2
    found.absence = tonumber(f[6])
    local deadline = tonumber(f[7] or '')
    if not deadline then return found end
    -- The server drops a handle by its own clock; ours may be behind it.
    if not (deadline > now) or call('EXISTS', prefix .. 'h' .. id) == 0 then
        expired = expired + (done(prefix, id, 1))
        found.absence = 1
        return found
    end
    found.absence = -1
    if found.relation == 0 then return found end
    local gain, bytes = tonumber(f[9]), tonumber(f[10])
    if found.relation == 2 then
        local size = struct.unpack('>d', string.sub(ARGV[9], (depth - first) * 8 + 1, (depth - first + 1) * 8))
        gain = gain * (bytes > 0 and math.min(size / bytes, 1) or 0)
    end
    if depth < own or gain < share * tonumber(f[8]) then found.absence = 2 end
    return found
end

local function beats(one, other)
    if (one.absence == -1) ~= (other.absence == -1) then return one.absence == -1 end
    if one.tip ~= other.tip then return one.tip end
    return one.same and not other.same
end

local here, before = call('EXISTS', KEYS[1]) == 1, call('EXISTS', KEYS[2]) == 1
for depth = (here or before) and last or 0, first, -1 do
    local key = string.sub(ARGV[8], (depth - first) * 16 + 1, (depth - first + 1) * 16)
    local ids = here and call('HGET', KEYS[1], key)
    if not ids and before then
        ids = call('HGET', KEYS[2], key)
        if ids then call('HSET', KEYS[1], key, ids) end
    end
    local best
    for at = 1, ids and #ids or 0, 8 do
        local found = branch_at(string.sub(ids, at, at + 7), key, depth)
        if found and (not best or beats(found, best)) then best = found end
    end
    if best then
        local handle = false
        if best.absence == -1 then
            local _
            _, handle = done(prefix, best.id, 0)
        end
        call('PEXPIRE', best.at, ttl_ms)
        call('PEXPIRE', KEYS[1], 2 * ttl_ms)
        call('ZADD', KEYS[4], now, best.id)
        return {expired, false, best.id, best.version, best.turns, depth, best.relation, best.absence, best.trace,
            handle}
    end
end
return {expired, call('GET', KEYS[3])}
