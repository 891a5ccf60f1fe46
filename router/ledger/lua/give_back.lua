-- A handle that was never sent; nothing happens where its branch has moved on.
--
-- KEYS  1 the branch
-- ARGV  1 prefix of all keys of this slot, 2 now_s, 3 trace ttl in ms, 4 id, 5 version, 6 handle, 7 its
--       deadline_s, 8 its ttl in ms, 9 its tokens, 10 those of its prompt, 11 its decode node, 12 finish
-- Reply {1 where it was taken back, expired handles}

local f = call('HMGET', KEYS[1], 'v', 'd')
if f[1] ~= ARGV[5] or f[2] then return {0, 0} end
if not (tonumber(ARGV[7]) > tonumber(ARGV[2])) then
    call('HSET', KEYS[1], 'a', 1)
    return {0, 1}
end
wait(ARGV[1], ARGV[4], ARGV[2], ARGV[3], {value = ARGV[6], deadline = ARGV[7], ttl_ms = ARGV[8],
    tokens = ARGV[9], prompt_tokens = ARGV[10], decode = ARGV[11], finish = ARGV[12]})
return {1, 0}
