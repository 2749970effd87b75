-- Reading lines. Every script gets the prefix of the store's keys as its first argument and works on the keys
-- of one tag, which its key names. "single" is true on a single server: there a script may reach every key.

-- name: lives
-- The key of another kind beside the rows of a line.
local function beside(rows, kind) return (string.gsub(rows, ':r:(%d+)$', ':' .. kind .. ':%1')) end
-- What forks need of a line stays when its own time is over; a key beside it goes then, by the server's own expiry.
local function is_over(rows)
  return redis.call('HEXISTS', rows, 'e') == 1 and redis.call('EXISTS', beside(rows, 'e')) == 0
end

-- name: common
-- What every script of lines begins with.
local call, byte, sub = redis.call, string.byte, string.sub
local P = ARGV[1]
local function K(tag, kind) return P .. ':{' .. tag .. '}:' .. kind end
-- a row's value: kind, first (4 bytes), length of the hash, hash, …
local function kind_of(v) return byte(v, 1) - 48 end
local function first_of(v)
  return ((byte(v, 2) * 256 + byte(v, 3)) * 256 + byte(v, 4)) * 256 + byte(v, 5)
end
-- what has its body beside it, and its seq among the packs: a pack, what was pruned, what is in an archive
local function is_folded(kind) return kind == 1 or kind == 5 or kind == 6 end
local function hash_of(v) return sub(v, 7, 6 + byte(v, 6)) end
-- a line's head: a(live) or d(eleted), hash, hash of the row before, seq
local function seq_of(h)
  local a = byte(h, 2)
  return tonumber(sub(h, 4 + a + byte(h, 3 + a)))
end
-- a row as it is given back: seq, value, body if asked for, net, keyframe
local function row(rows, seq, inside)
  local v = call('HMGET', rows, seq, seq .. 'k', seq .. 'n')
  if not v[1] then return nil end
  local body, kind = false, kind_of(v[1])
  if inside and is_folded(kind) then body = call('HGET', rows, seq .. 'b') end
  return {seq, v[1], body, v[3], v[2]}
end
-- the seq of the row that holds a version
local function holder(rows, packs, seq)
  if call('HEXISTS', rows, seq) == 1 then return seq end
  local found = call('ZRANGEBYSCORE', packs, seq, '+inf', 'LIMIT', 0, 1)
  return found[1] and tonumber(found[1])
end
-- the next row below a version that no row holds; nil where the line begins. Bounded: rows that are missing
-- are damage, and more of them than this aren't passed over
local function below(rows, packs, at)
  if at < 1 or call('EXISTS', rows) == 0 then return nil end
  local line = call('HGET', (string.gsub(rows, ':r:(%d+)$', ':l:%1')), 'm')
  local ok, fields = pcall(cmsgpack.unpack, sub(line or '', 5))
  local floor = ok and type(fields) == 'table' and tonumber(fields[5]) or 0
  local left = 65536
  while at > floor and left > 0 do
    local pack = call('ZREVRANGEBYSCORE', packs, at, '-inf', 'LIMIT', 0, 1)[1]
    pack = math.max(pack and tonumber(pack) or 0, floor)
    for seq = at, math.max(pack, floor + 1, at - left), -1 do
      if call('HEXISTS', rows, seq) == 1 then return seq end
    end
    left, at = left - (at - pack) - 1, pack - 1
  end
end
-- whether a line is there, and neither deleted nor over
local function is_alive(tag, m)
  local l = call('HMGET', K(tag, 'l:' .. m), 'm', 'd')
  return l[1] and not l[2] and not is_over(K(tag, 'r:' .. m))
end
-- what is over counts as deleted
local function is_deleted(tag, m, d) return (d or is_over(K(tag, 'r:' .. m))) and 1 or 0 end
local function found(tag, m)
  local l = call('HMGET', K(tag, 'l:' .. m), 'r', 'm', 'd', 't', 'w')
  if not l[2] then return false end
  local rows = K(tag, 'r:' .. m)
  local there = call('HMGET', rows, 'h', 'e')
  local h = there[1]
  if not h then return redis.error_reply('DAMAGED line ' .. tag .. ':' .. m .. ' has no head') end
  local gone = l[3] or (there[2] and is_over(rows))
  return {m, l[1], l[2], gone and 1 or 0, h, row(rows, seq_of(h), true) or false, l[4] or '0', l[5]}
end
local function put(out, r)
  for i = 1, 5 do out[#out + 1] = r[i] end
end

-- name: find
-- KEYS: the family of the name. ARGV: single, tag, digest of the name. Where the line is, and the line.
local ref = call('HGET', KEYS[1], 'n' .. ARGV[4])
if not ref then return false end
local tag, m = string.match(ref, '^(%x+):(%d+)$')
if tag ~= ARGV[3] and ARGV[2] == '0' then return {ref, false} end
local f = found(tag, m)
if f and f.err then return f end
if not f or f[4] == 1 then return false end
return {ref, f}

-- name: found
-- KEYS: the rows of a line. ARGV: tag, place, whether with its tags.
local f = found(ARGV[2], ARGV[3])
if f and f.err then return f end
return {f, ARGV[4] == '1' and call('HGETALL', K(ARGV[2], 't:' .. ARGV[3])) or false}

-- name: line
-- KEYS: the rows of a line. ARGV: tag, place. The line alone.
local l = call('HMGET', K(ARGV[2], 'l:' .. ARGV[3]), 'r', 'm', 'd', 'w')
if not l[2] or (l[4] and not l[3]) then return false end
return {ARGV[3], l[1], l[2], is_deleted(ARGV[2], ARGV[3], l[3])}

-- name: by uid
-- KEYS: the register of uids, or the family. ARGV: uid, tag, or nothing where a script may reach every key.
local tag = ARGV[3]
if tag == '' then tag = call('HGET', KEYS[1], ARGV[2]) end
if not tag then return false end
local m = call('HGET', K(tag, 'f'), 'u' .. ARGV[2])
if not m then return false end
local l = call('HMGET', K(tag, 'l:' .. m), 'r', 'm', 'd')
if not l[2] then return false end
return {tag, {m, l[1], l[2], is_deleted(tag, m, l[3])}}

-- name: members
-- KEYS: the family. ARGV: tag, the place to go on after, how many. Lines, and for how many seconds one waits
-- for its name.
local now = tonumber(call('TIME')[1])
local last = tonumber(call('HGET', KEYS[1], 'c') or '0')
local out, m = {}, tonumber(ARGV[3])
while m < last and #out < tonumber(ARGV[4]) do
  m = m + 1
  local l = call('HMGET', K(ARGV[2], 'l:' .. m), 'r', 'm', 'd', 'w')
  local waits = l[4] and not l[3] and now - tonumber(l[4]) or false
  if l[2] then out[#out + 1] = {m, l[1], l[2], is_deleted(ARGV[2], m, l[3]), waits} end
end
return {m, last, out}

-- name: replay
-- KEYS: rows and packs of a line. ARGV: seq, floor.
local seq, floor, out = tonumber(ARGV[2]), tonumber(ARGV[3]), {}
local at = holder(KEYS[1], KEYS[2], seq)
while at and at > floor do
  local r = row(KEYS[1], at, at > seq)
  if not r then break end
  put(out, r)
  if (r[5] and at <= seq) or kind_of(r[2]) == 2 then break end
  at = first_of(r[2]) - 1
end
return out

-- name: scan
-- KEYS: rows and packs of a line. ARGV: seq, limit.
local h = call('HGET', KEYS[1], 'h')
if not h then return {} end
local seq, left, out = tonumber(ARGV[2]), tonumber(ARGV[3]), {}
local last = seq_of(h)
local at = seq >= last and last or holder(KEYS[1], KEYS[2], seq)
local inside = at and at > seq and call('HGET', KEYS[1], at)
if not at or (at > seq and not (inside and first_of(inside) <= seq)) then
  at = below(KEYS[1], KEYS[2], seq)
end
while at and left > 0 do
  local r = row(KEYS[1], at, true)
  if r then
    put(out, r)
    left, at = left - 1, first_of(r[2]) - 1
  else
    at = below(KEYS[1], KEYS[2], at)
  end
end
return out

-- name: tail
-- KEYS: rows and packs of a line. The newest first.
local h = call('HGET', KEYS[1], 'h')
if not h then return {} end
local at, out = seq_of(h), {}
while at do
  local r = row(KEYS[1], at, false)
  if r then
    if is_folded(kind_of(r[2])) then break end
    put(out, r)
    at = at - 1
  else
    at = below(KEYS[1], KEYS[2], at)
  end
end
return out

-- name: chunks
-- KEYS: the index of a log, its data. ARGV: start, stop, digest of the log, whether with data.
local out = call('ZREVRANGEBYSCORE', KEYS[1], ARGV[2], '-inf', 'WITHSCORES', 'LIMIT', 0, 1)
local stop = ARGV[3] == '' and '+inf' or '(' .. ARGV[3]
for _, each in ipairs(call('ZRANGEBYSCORE', KEYS[1], '(' .. ARGV[2], stop, 'WITHSCORES')) do
  out[#out + 1] = each
end
local found = {}
for i = 1, #out, 2 do
  found[#found + 1] = out[i]
  found[#found + 1] = ARGV[5] == '1' and call('HGET', KEYS[2], ARGV[4] .. out[i + 1]) or false
end
return found

-- name: newer
-- KEYS: the rows of a line. ARGV: seq.
local h = call('HGET', KEYS[1], 'h')
if not h or byte(h, 1) == 100 or is_over(KEYS[1]) or seq_of(h) > tonumber(ARGV[2]) then return 1 end
return 0

-- name: usage
-- KEYS: rows and packs of a line. ARGV: tag, place. By kind: versions, bytes, keyframes; bytes of chunks.
local rows, tag, m = KEYS[1], ARGV[2], ARGV[3]
local h = call('HGET', rows, 'h')
if not h then return false end
local at, by = seq_of(h), {}
for kind = 0, 6 do by[kind + 1] = {0, 0, 0} end
while true do
  local v = call('HGET', rows, at)
  if not v then break end
  local kind, first = kind_of(v), first_of(v)
  local one = by[kind + 1]
  one[1] = one[1] + at - first + 1
  if is_folded(kind) then
    one[2] = one[2] + call('HSTRLEN', rows, at .. 'b') + call('HSTRLEN', rows, at .. 'n')
  else
    local start = 7 + byte(v, 6)
    one[2] = one[2] + #v - start - byte(v, start) - 4
  end
  one[3] = one[3] + call('HSTRLEN', rows, at .. 'k')
  at = first - 1
end
local chunks = 0
for _, field in ipairs(call('HKEYS', K(tag, 'l:' .. m))) do
  if byte(field, 1) == 103 then
    local hex = string.gsub(sub(field, 2), '.', function(c) return string.format('%02x', byte(c)) end)
    for _, entry in ipairs(call('ZRANGE', K(tag, 'x:' .. m .. ':' .. hex), 0, -1)) do
      local a, b, c, d = byte(entry, 13, 16)
      chunks = chunks + #entry - 28 + ((a * 256 + b) * 256 + c) * 256 + d
    end
  end
end
return {by, chunks}
