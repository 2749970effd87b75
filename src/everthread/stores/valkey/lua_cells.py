"""The scripts of cells and of streams of events."""

from __future__ import annotations

from everthread.stores.valkey.lua_sealed import TAKING

#: A cell is kept as: revision, when it was written, the token of that write, value.
_CELL = """
local function now()
  local t = redis.call('TIME')
  return tonumber(t[1]) * 1000000 + tonumber(t[2])
end
local function num(n) return string.format('%.0f', n) end
local function read(cell)
  local revision, written, token, at = string.match(cell, '^(%d+) (%d+) (%x+) ()')
  return tonumber(revision), written, token, string.sub(cell, at)
end
"""

#: KEYS: the cells of a space. ARGV: name. Value, revision, when written, now.
CELL = (
    _CELL
    + """
local there = redis.call('HGET', KEYS[1], ARGV[1])
if not there then return false end
local revision, written, _, value = read(there)
return {value, num(revision), written, num(now())}
"""
)

#: KEYS: cells, their names in order, where the floor is. ARGV: name, expected revision, whether there is a
#: value, value, token, whether an earlier try may have landed. The new revision, or what stands there.
SWAP = (
    _CELL
    + """
local there = redis.call('HGET', KEYS[1], ARGV[1])
local revision, written, token, value = 0, nil, nil, nil
if there then revision, written, token, value = read(there) end
if ARGV[6] == '1' then
  if there and token == ARGV[5] then return num(revision) end
  if not there and ARGV[3] == '0' then return '0' end
end
if num(revision) ~= ARGV[2] then
  if not there then return {} end
  return {value, num(revision), written, num(now())}
end
local floor = tonumber(redis.call('HGET', KEYS[3], 'floor') or '0')
if ARGV[3] == '0' then
  if there then
    redis.call('HDEL', KEYS[1], ARGV[1])
    redis.call('ZREM', KEYS[2], ARGV[1])
    if revision > floor then redis.call('HSET', KEYS[3], 'floor', num(revision)) end
  end
  return '0'
end
local made = (there and revision or floor) + 1
redis.call('HSET', KEYS[1], ARGV[1], num(made) .. ' ' .. num(now()) .. ' ' .. ARGV[5] .. ' ' .. ARGV[4])
if not there then redis.call('ZADD', KEYS[2], 0, ARGV[1]) end
return num(made)
"""
)

#: KEYS: cells, their names in order. ARGV: from where, up to where, limit. Name, value, revision, times.
CELLS = (
    _CELL
    + """
local out, at = {}, num(now())
for _, name in ipairs(redis.call('ZRANGEBYLEX', KEYS[2], ARGV[1], ARGV[2], 'LIMIT', 0, ARGV[3])) do
  local there = redis.call('HGET', KEYS[1], name)
  if there then
    local revision, written, _, value = read(there)
    out[#out + 1] = {name, value, num(revision), written, at}
  end
end
return out
"""
)

#: An event is an entry of a stream, whose id is its seq: at, peak, type, body, then perhaps agent and token.
_STREAM = """
local call, K = redis.call, KEYS[1]
local meta = string.sub(K, 1, #K - 1) .. 'm'
local function num(n) return string.format('%.0f', n) end
local function index(digest) return string.sub(K, 1, #K - 1) .. 'y:' .. digest end
local m = call('HMGET', meta, 'first', 'last', 'peak', 'late')
local first, last = tonumber(m[1] or '1'), tonumber(m[2] or '0')
local function seq(entry) return tonumber(string.match(entry[1], '^%d+')) end
"""

#: KEYS: a stream. ARGV: packed events with the digests that they are indexed by, the token, whether an
#: earlier try may have landed, the largest seq, sealed values, the prefix. The seq of the first.
EMIT = (
    _STREAM
    + """
local A = cmsgpack.unpack(ARGV[1])
local PREFIX = A.prefix
"""
    + TAKING
    + """
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
"""
)

#: KEYS: a stream. ARGV: after, limit, digest of the index to go by, since, until (or nothing). Entries.
EVENTS = (
    _STREAM
    + """
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
"""
)

#: KEYS: a stream. First, last, bytes, how many entries it holds.
STREAM = _STREAM + "return {num(first), num(last), call('HGET', meta, 'bytes') or '0', call('XLEN', K)}"

#: KEYS: a stream. ARGV: token, whether an earlier try may have landed. Empty; its numbers go on.
DROP = (
    _STREAM
    + """
if ARGV[2] == '1' and call('HGET', meta, 'dropped') == ARGV[1] then return 1 end
if last < first then return 0 end
call('XTRIM', K, 'MAXLEN', 0)
for _, digest in ipairs(call('SMEMBERS', meta .. 'y')) do call('UNLINK', index(digest)) end
call('UNLINK', meta .. 'y')
call('HDEL', meta, 'peak', 'late')
call('HSET', meta, 'first', num(last + 1), 'bytes', '0', 'dropped', ARGV[1])
return 1
"""
)

#: KEYS: a stream. ARGV: packed pairs of seq and body. How many events have another body now. The stream is
#: built anew: an entry can't be replaced, and what is taken out of one stays in its bytes.
REWRITE = (
    _STREAM
    + """
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
"""
)

#: KEYS: one register of sealed values. How many, and their bytes.
SEALED_TAKE = """
local count, bytes = 0, 0
for _, value in ipairs(redis.call('HVALS', KEYS[1])) do
  local keys = string.byte(value, 1) * 256 + string.byte(value, 2)
  count, bytes = count + 1, bytes + #value - 2 - keys
end
return {count, bytes}
"""

#: KEYS: the cells of a space. How many, and their bytes.
CELLS_TAKE = """
local count, bytes = 0, 0
for _, value in ipairs(redis.call('HVALS', KEYS[1])) do
  local _, _, _, at = string.match(value, '^(%d+) (%d+) (%x+) ()')
  count, bytes = count + 1, bytes + #value - at + 1
end
return {count, bytes}
"""
