-- A handle to be released: no turn gets it any more.
--
-- KEYS  1 the branch
-- ARGV  1 prefix of all keys of this slot, 2 now_s, 3 id, 4 version or '' for any, 5 owner or '' for any;
--       an owner's branch is nobody's afterwards, and what a turn has of it comes back no more
-- Reply {1 where it is that branch, expired handles, handle or false}

local f = call('HMGET', KEYS[1], 'v', 'o', 'd')
if not f[1] or (ARGV[4] ~= '' and f[1] ~= ARGV[4]) or (ARGV[5] ~= '' and f[2] ~= ARGV[5]) then
    return {0, 0, false}
end
if ARGV[5] ~= '' then
    call('HSET', KEYS[1], 'o', '', 'c', '')
    call('HINCRBY', KEYS[1], 'v', 1)
end
local deadline = tonumber(f[3] or '')
if not deadline then return {1, 0, false} end
if not (deadline > tonumber(ARGV[2])) or call('EXISTS', ARGV[1] .. 'h' .. ARGV[3]) == 0 then
    return {1, (done(ARGV[1], ARGV[3], 1)), false}
end
local _, handle = done(ARGV[1], ARGV[3], 3)
return {1, 0, handle}
