-- Streams of events.

-- name: for streams
-- An event is an entry of a stream, whose id is its seq: at, peak, type, body, then perhaps agent and token.
local call, K = redis.call, KEYS[1]
local meta = string.sub(K, 1, #K - 1) .. 'm'
local function num(n) return string.format('%.0f', n) end
local function index(digest) return string.sub(K, 1, #K - 1) .. 'y:' .. digest end
local m = call('HMGET', meta, 'first', 'last', 'peak', 'late')
local first, last = tonumber(m[1] or '1'), tonumber(m[2] or '0')
local function seq(entry) return tonumber(string.match(entry[1], '^%d+')) end

-- name: emit
-- KEYS: a stream. Packed: events with the digests that they are indexed by, the token, whether an earlier try
-- may have landed, the largest seq, sealed values. The seq of the first.
if A.retry then
  for _, entry in ipairs(call('XREVRANGE', K, '+', '-', 'COUNT', 20000)) do
    if entry[2][#entry[2] - 1] == 'k' and entry[2][#entry[2]] == A.token then return num(seq(entry)) end
  end
end
local gone = erased_of(A.sealed)
if gone then return gone end
if last + #A.events > A.most then return {'full'} end
local peak = tonumber(m[3] or A.events[1][1])
local late, bytes, at = tonumber(m[4] or '0'), 0, last
local kinds = {}
for i, e in ipairs(A.events) do
  at = at + 1
  if e[1] > peak then peak = e[1] end
  if peak - e[1] > late then late = peak - e[1] end
  local entry = {'w', num(e[1]), 'p', num(peak), 't', e[2], 'b', e[4]}
  if e[3] then entry[9] = 'a'; entry[10] = e[3] end
  if i == 1 then entry[#entry + 1] = 'k'; entry[#entry + 1] = A.token end
  call('XADD', K, num(at) .. '-0', unpack(entry))
  for _, digest in ipairs(e[5]) do
    call('XADD', index(digest), num(at) .. '-0', 's', '')
    kinds[digest] = true
  end
  bytes = bytes + #e[4]
end
call('HSET', meta, 'first', num(first), 'last', num(at), 'peak', num(peak), 'late', num(late))
call('HINCRBY', meta, 'bytes', num(bytes))
for digest in pairs(kinds) do call('SADD', meta .. 'y', digest) end
add_sealed(A.sealed)
return num(last + 1)

-- name: events
-- KEYS: a stream. ARGV: after, limit, digest of the index to go by, since, until (or nothing). Entries.
local start, limit, by = math.max(tonumber(ARGV[1]) + 1, first), tonumber(ARGV[2]), ARGV[3]
local since, till, stop = tonumber(ARGV[4]), tonumber(ARGV[5]), last
local function peak(at)
  local found = call('XRANGE', K, num(at) .. '-0', num(at) .. '-0')
  return found[1] and tonumber(found[1][2][4])
end
-- the first seq whose peak isn't below, or lies above, a time: peaks only grow
local function bound(time, above)
  local low, high = first, last + 1
  while low < high do
    local middle = math.floor((low + high) / 2)
    local p = peak(middle)
    if p and (p > time or (not above and p == time)) then high = middle else low = middle + 1 end
  end
  return low
end
if since then start = math.max(start, bound(since, false)) end
if till then stop = math.min(stop, bound(till + tonumber(m[4] or '0'), true) - 1) end
local out, source = {}, by == '' and K or index(by)
while #out < limit and start <= stop do
  local page = call('XRANGE', source, num(start) .. '-0', num(stop) .. '-0', 'COUNT', limit - #out)
  if #page == 0 then break end
  for _, entry in ipairs(page) do
    start = seq(entry) + 1
    if by ~= '' then entry = call('XRANGE', K, entry[1], entry[1])[1] end
    if entry then
      local at = tonumber(entry[2][2])
      if (not since or at >= since) and (not till or at <= till) then out[#out + 1] = entry end
    end
  end
end
return out

-- name: stream
-- KEYS: a stream. First, last, bytes, how many entries it holds.
return {num(first), num(last), call('HGET', meta, 'bytes') or '0', call('XLEN', K)}

-- name: trim
-- KEYS: a stream. ARGV: token, up to which seq, how many at most, whether an earlier try may have landed. How many
-- were removed, and whether there are more. The numbers go on.
local up_to = math.min(tonumber(ARGV[2]), last)
local function answer(count) return {count, tonumber(call('HGET', meta, 'first') or '1') <= up_to and 1 or 0} end
if ARGV[4] == '1' and call('HGET', meta, 'trimmed') == ARGV[1] then
  return answer(tonumber(call('HGET', meta, 'count')))
end
if up_to < first then return {0, 0} end
if up_to == last then
  call('XTRIM', K, 'MAXLEN', 0)
  for _, digest in ipairs(call('SMEMBERS', meta .. 'y')) do call('UNLINK', index(digest)) end
  call('UNLINK', meta .. 'y')
  call('HDEL', meta, 'peak', 'late')
  call('HSET', meta, 'first', num(last + 1), 'bytes', '0', 'trimmed', ARGV[1], 'count', num(last + 1 - first))
  return answer(last + 1 - first)
end
local top, bytes, at = math.min(up_to, first + tonumber(ARGV[3]) - 1), 0, first
while at <= top do
  local page = call('XRANGE', K, num(at) .. '-0', num(top) .. '-0', 'COUNT', 500)
  if #page == 0 then break end
  for _, entry in ipairs(page) do
    at, bytes = seq(entry) + 1, bytes + #entry[2][8]
  end
end
call('XTRIM', K, 'MINID', num(top + 1) .. '-0')
for _, digest in ipairs(call('SMEMBERS', meta .. 'y')) do
  call('XTRIM', index(digest), 'MINID', num(top + 1) .. '-0')
  if call('XLEN', index(digest)) == 0 then
    call('UNLINK', index(digest))
    call('SREM', meta .. 'y', digest)
  end
end
call('HINCRBY', meta, 'bytes', num(-bytes))
call('HSET', meta, 'first', num(top + 1), 'trimmed', ARGV[1], 'count', num(top + 1 - first))
return answer(top + 1 - first)

-- name: rewrite
-- KEYS: a stream. ARGV: packed pairs of seq and body. How many events have another body now. The stream is
-- built anew: an entry can't be replaced, and what is taken out of one stays in its bytes.
local new, count, grown = {}, 0, 0
for _, e in ipairs(cmsgpack.unpack(ARGV[1])) do new[num(e[1])] = e[2] end
local all = call('XRANGE', K, '-', '+')
for _, entry in ipairs(all) do
  local body, fields = new[num(seq(entry))], entry[2]
  for i = 1, body and #fields or 0, 2 do
    if fields[i] == 'b' then
      count, grown = count + 1, grown + #body - #fields[i + 1]
      fields[i + 1] = body
    end
  end
end
if count == 0 then return 0 end
call('DEL', K)
for _, entry in ipairs(all) do call('XADD', K, entry[1], unpack(entry[2])) end
call('HINCRBY', meta, 'bytes', num(grown))
return count
