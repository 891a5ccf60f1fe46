-- A finished turn: its branch moves on, or one of its own begins.
--
-- KEYS  1 the root's index of this generation, 2 of the one before, 3 branches by last use
-- ARGV  1 prefix of all keys of this slot, 2 now_s, 3 trace ttl in ms, 4 depth of the first boundary given,
--       5 boundaries (16 bytes each), 6 id of the branch found here or '', 7 its version, 8 depth found,
--       9 '1' for an extension, 10 id for a new branch, 11 trace, 12 bytes of the prompt, 13 conversation,
--       14 owner, 15 absence where no handle comes, 16 most branches at a boundary, 17 most branches of a slot,
--       18 handle or '', 19 its deadline_s, 20 its ttl in ms, 21 its tokens, 22 those of its prompt,
--       23 its decode node, 24 finish
-- Reply {id, expired handles, evicted branches, the handle that was superseded or false, evicted handles ...}

local prefix, now, ttl_ms, first = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local last = first + #ARGV[5] / 16 - 1
local id, version = ARGV[6], false
if id ~= '' then version = call('HGET', prefix .. 'b' .. id, 'v') end

local new_from = first
if version and ARGV[9] == '1' and version == ARGV[7] then
    new_from = tonumber(ARGV[8]) + 1
else
    -- Where it left it comes first; what lies before is the older branch's, as long as that is there.
    if version then new_from = math.max(first, tonumber(ARGV[8])) end
    id = ARGV[10]
end

local function boundary(depth)
    return string.sub(ARGV[5], (depth - first) * 16 + 1, (depth - first + 1) * 16)
end

-- What lies in the older generation alone is carried over: it ends on its own.
if call('EXISTS', KEYS[2]) == 1 then
    for depth = first, new_from - 1 do
        local key = boundary(depth)
        if call('HEXISTS', KEYS[1], key) == 0 then
            call('HSET', KEYS[1], key, call('HGET', KEYS[2], key) or id)
        end
    end
end
for depth = new_from, last do
    local key = boundary(depth)
    local ids = id
    local known = call('HGET', KEYS[1], key) or call('HGET', KEYS[2], key) or ''
    for at = 1, #known, 8 do
        local other = string.sub(known, at, at + 7)
        if other ~= id and #ids < 8 * tonumber(ARGV[16]) then ids = ids .. other end
    end
    call('HSET', KEYS[1], key, ids)
end
call('PEXPIRE', KEYS[1], 2 * ttl_ms)

local at = prefix .. 'b' .. id
local _, superseded = done(prefix, id, 0)
call('HINCRBY', at, 'v', 1)
call('HINCRBY', at, 'n', 1)
call('HSET', at, 'k', boundary(last), 't', ARGV[11], 'pb', ARGV[12], 'c', ARGV[13], 'o', ARGV[14], 'a', ARGV[15])
if ARGV[18] ~= '' then
    wait(prefix, id, now, ttl_ms, {value = ARGV[18], deadline = ARGV[19], ttl_ms = ARGV[20], tokens = ARGV[21],
        prompt_tokens = ARGV[22], decode = ARGV[23], finish = ARGV[24]})
end
call('PEXPIRE', at, ttl_ms)
call('ZADD', KEYS[3], now, id)

local expired, branches, evicted = 0, 0, {}
for _, late in ipairs(call('ZRANGEBYSCORE', prefix .. 'H', '-inf', now, 'LIMIT', 0, 100)) do
    expired = expired + (done(prefix, late, 1))
end
call('ZREMRANGEBYSCORE', KEYS[3], '-inf', tonumber(now) - ttl_ms / 1000)
for _ = 1, math.min(call('ZCARD', KEYS[3]) - tonumber(ARGV[17]), 100) do
    local oldest = call('ZPOPMIN', KEYS[3])[1]
    local _, handle = done(prefix, oldest, 0)
    if handle then evicted[#evicted + 1] = handle end
    call('DEL', prefix .. 'b' .. oldest)
    branches = branches + 1
end
call('PEXPIRE', KEYS[3], 2 * ttl_ms)
return {id, expired, branches, superseded or false, unpack(evicted)}
