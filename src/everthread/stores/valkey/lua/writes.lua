-- Writing lines. Each script looks at everything first and changes everything then.

-- name: for lifetimes
-- The keys of a line stay as long as it lives, or a fork of it, or one of theirs; then the server's own expiry takes
-- all of them at one moment. Moments are milliseconds; -1 is for ever, 0 is over.
local function moment(key) return redis.call('PEXPIRETIME', key) end
local function expire(key, at)
  if at < 0 then redis.call('PERSIST', key) else redis.call('PEXPIREAT', key, string.format('%.0f', at)) end
end
local function parent_of(rows)
  local p = redis.call('HGET', beside(rows, 'l'), 'p')
  return p and (string.gsub(rows, '%d+$', p))
end
-- until when a line lives itself, whatever its forks need
local function own_moment(rows)
  if redis.call('HEXISTS', beside(rows, 'l'), 'd') == 1 then return 0 end
  if redis.call('EXISTS', beside(rows, 'c')) == 0 then return math.max(moment(rows), -1) end
  if redis.call('HEXISTS', rows, 'e') == 0 then return -1 end
  return math.max(moment(beside(rows, 'e')), 0)
end
local function keep_until(rows, at)
  local l, keys = beside(rows, 'l'), {rows}
  for i, kind in ipairs({'l', 'z', 'd', 'K', 'k', 'c'}) do keys[i + 1] = beside(rows, kind) end
  for _, field in ipairs(redis.call('HKEYS', l)) do
    if string.byte(field, 1) == 103 then
      local hex = string.gsub(string.sub(field, 2), '.', function(c) return string.format('%02x', string.byte(c)) end)
      keys[#keys + 1] = beside(rows, 'x') .. ':' .. hex
    end
  end
  for _, key in ipairs(keys) do expire(key, at) end
  -- No fork reads the tags of what it was forked from.
  expire(beside(rows, 't'), at == 0 and 0 or own_moment(rows))
end
-- a line and what it was forked from stay until then, if they would have gone before
local function prolong(rows, at)
  while rows do
    local was = moment(rows)
    if was < 0 or (at >= 0 and was >= at) then return end
    keep_until(rows, at)
    rows = parent_of(rows)
  end
end
-- what nobody reads any more goes with the line that it was forked from
local function bury(rows, at)
  keep_until(rows, at)
  for _, c in ipairs(redis.call('SMEMBERS', beside(rows, 'c'))) do bury(string.gsub(rows, '%d+$', c), at) end
end
-- after a line or a fork of it got less time: until when it is needed, and then what it was forked from
local function reckon(rows)
  while rows and redis.call('EXISTS', rows) == 1 do
    local at, was, above, purged = own_moment(rows), moment(rows), parent_of(rows), {}
    for _, c in ipairs(at < 0 and {} or redis.call('SMEMBERS', beside(rows, 'c'))) do
      local fork = string.gsub(rows, '%d+$', c)
      local needs = moment(fork)
      if redis.call('HEXISTS', beside(fork, 'l'), 'x') == 1 then
        purged[#purged + 1] = fork
      elseif needs == -1 then
        at = -1
        break
      else
        at = math.max(at, needs)
      end
    end
    if at == was then return end
    keep_until(rows, at)
    for _, fork in ipairs(at < 0 and {} or purged) do bury(fork, at) end
    rows = above
  end
end
-- after keys were added to a line
local function renew(rows)
  local at = moment(rows)
  if at > 0 then
    keep_until(rows, at)
  elseif redis.call('HEXISTS', rows, 'e') == 1 then
    expire(beside(rows, 't'), own_moment(rows))
  end
end
-- from now on a line lives for so long; "born": nobody has counted on it before
local function live(rows, ms, born)
  local at, was, above = -1, own_moment(rows), parent_of(rows)
  if ms then
    local now = redis.call('TIME')
    at = now[1] * 1000 + math.floor(now[2] / 1000) + ms
  end
  local is_less = not born and at >= 0 and (was < 0 or at < was)
  if redis.call('EXISTS', beside(rows, 'c')) == 0 then
    keep_until(rows, at)
    if is_less then reckon(above) else prolong(above, at) end
    return
  end
  if ms then
    redis.call('HSET', rows, 'e', '1')
    redis.call('SET', beside(rows, 'e'), '1', 'PXAT', string.format('%.0f', at))
  else
    redis.call('HDEL', rows, 'e')
    redis.call('DEL', beside(rows, 'e'))
  end
  if is_less then reckon(rows) else prolong(rows, at) end
  expire(beside(rows, 't'), at)
  renew(rows)
end
-- a line gets a fork: from now on it may end before its keys do
local function part(rows, fork)
  local at, forks = moment(rows), beside(rows, 'c')
  if at > 0 and redis.call('EXISTS', forks) == 0 then
    redis.call('HSET', rows, 'e', '1')
    redis.call('SET', beside(rows, 'e'), '1', 'PXAT', string.format('%.0f', at))
  end
  redis.call('SADD', forks, fork)
  expire(forks, at)
  -- Of the forks that have expired since, each new one takes some off the list.
  for _, c in ipairs(redis.call('SRANDMEMBER', forks, 3)) do
    if redis.call('EXISTS', beside(string.gsub(rows, '%d+$', c), 'l')) == 0 then redis.call('SREM', forks, c) end
  end
end

-- name: append
-- The hot path. KEYS: the rows of a line. ARGV: what its head must begin with, the new head, seq, row, how to
-- publish, whether an earlier try may have landed. 1, or what stands there.
local there = redis.call('HMGET', KEYS[1], 'h', 'U', 'e')
local h = there[1]
if not h or string.sub(h, 1, #ARGV[1]) ~= ARGV[1] then
  if ARGV[6] == '1' and h then
    if h == ARGV[2] then return 1 end
    local there = redis.call('HGET', KEYS[1], ARGV[3])
    if there == ARGV[4] then return 1 end
    if not there and string.byte(h, 1) == 97 then return {'?'} end
  end
  return {h or false}
end
if there[3] and is_over(KEYS[1]) then return {false} end
redis.call('HSET', KEYS[1], 'h', ARGV[2], ARGV[3], ARGV[4])
if there[2] and ARGV[5] == 'PUBLISH' then redis.call('SADD', there[2], KEYS[1]) end
redis.call(ARGV[5], KEYS[1], '')
if not there[3] and redis.call('PEXPIRETIME', KEYS[1]) < 0 then return 1 end

-- name: append for ever
-- The end of APPEND, after what it needs for it: the line had a time to live.
live(KEYS[1], nil)
return 1

-- name: for writes
-- What the scripts below have besides: chunks, sealed values, tags, keys, purging.
local A = cmsgpack.unpack(ARGV[2])
local function each(list, most, todo)
  for i = 1, #list, most do todo(unpack(list, i, math.min(i + most - 1, #list))) end
end
local function hex(raw)
  return (string.gsub(raw, '.', function(c) return string.format('%02x', byte(c)) end))
end
local function add_chunks(tag, m, chunks)
  for _, c in ipairs(chunks) do
    call('HSET', K(tag, 'l:' .. m), 'g' .. c[1], c[2])
    call('ZADD', K(tag, 'x:' .. m .. ':' .. hex(c[1])), c[3], c[4])
    call('HSET', K(tag, 'd:' .. m), c[1] .. string.format('%.0f', c[3]), c[5])
  end
end
local function set_tags(tag, m, seq, tags)
  local key = K(tag, 'l:' .. m)
  if call('HEXISTS', key, 'm') == 0 then return {} end
  if seq <= tonumber(call('HGET', key, 't') or '0') then return {} end
  call('HSET', key, 't', seq)
  local old = {}
  for i = 1, #tags, 2 do
    local was = call('HGET', K(tag, 't:' .. m), tags[i])
    if was and was ~= tags[i + 1] then old[#old + 1] = tags[i]; old[#old + 1] = was end
  end
  each(tags, 1000, function(...) call('HSET', K(tag, 't:' .. m), ...) end)
  if A.single then
    local rows = K(tag, 'r:' .. m)
    local there = call('HMGET', rows, 'h', 'U')
    if there[2] and seq_of(there[1]) <= seq then call('SREM', there[2], rows) end
  end
  return old
end
-- on a single server: the line is among those of its space whose tags lack the newest versions
local function tags_behind(rows)
  local list = call('HGET', rows, 'U')
  if list then call('SADD', list, rows) end
end
local function is_pruned(tag, m, seq)
  local rows = K(tag, 'r:' .. m)
  local at = holder(rows, K(tag, 'z:' .. m), seq)
  if not at then return nil end
  return kind_of(call('HGET', rows, at)) == 5
end
-- the keys of a line's folded versions above a seq are free
local function free_keys(tag, m, above)
  local keyed, blob = K(tag, 'k:' .. call('HGET', K(tag, 'l:' .. m), 'r')), call('GET', K(tag, 'K:' .. m)) or ''
  local left = {}
  for i = 1, #blob, 16 do
    local key, kept, mine = sub(blob, i, i + 15), {}, false
    for entry in string.gmatch(call('HGET', keyed, key) or '', '[^,]+') do
      local place, seq = string.match(entry, '^(%d+):(%d+)$')
      local own = place == tostring(m)
      if not own or tonumber(seq) <= above then kept[#kept + 1], mine = entry, mine or own end
    end
    if mine then left[#left + 1] = key end
    if #kept > 0 then call('HSET', keyed, key, table.concat(kept, ',')) else call('HDEL', keyed, key) end
  end
  if #blob > 0 then call('SET', K(tag, 'K:' .. m), table.concat(left), 'KEEPTTL') end
end
-- the head that a line has without the rows above the one that holds a version, its seq, and the seqs of these rows;
-- nothing where they don't follow each other
local function rows_above(rows, packs, seq)
  local at, cut, found = seq_of(call('HGET', rows, 'h')), holder(rows, packs, seq), {}
  while at > cut do
    local first = first_of(call('HGET', rows, at))
    if first > at then return nil end
    found[#found + 1] = at
    at = first - 1
  end
  local hash = at == cut and hash_of(call('HGET', rows, cut))
  return hash and 'a' .. string.char(#hash) .. hash .. '\0' .. string.format('%.0f', cut), cut, found
end
-- of a line whose own time is over: what lies above the versions that forks were made of
local function shed(tag, m)
  local rows, packs, top = K(tag, 'r:' .. m), K(tag, 'z:' .. m), 0
  if not is_over(rows) then return end
  local list = A.single and call('HGET', rows, 'U')
  if list then call('SREM', list, rows) end
  for _, c in ipairs(call('SMEMBERS', K(tag, 'c:' .. m))) do
    local s = call('HMGET', K(tag, 'l:' .. c), 's', 'x')
    if s[1] and not s[2] then top = math.max(top, tonumber(s[1])) end
  end
  -- What is damaged stays as it is: others tell of it.
  local ok, head, cut, found = pcall(rows_above, rows, packs, top)
  if top == 0 or not ok or not head or #found == 0 then return end
  for _, at in ipairs(found) do
    call('HDEL', rows, at, at .. 'b', at .. 'n', at .. 'k')
    call('ZREM', packs, string.format('%.0f', at))
  end
  for _, field in ipairs(call('HKEYS', K(tag, 'l:' .. m))) do
    if byte(field, 1) == 103 then
      local log = sub(field, 2)
      local index = K(tag, 'x:' .. m .. ':' .. hex(log))
      for _, entry in ipairs(call('ZRANGE', index, 0, -1)) do
        local a, b, c, d = byte(entry, 25, 28)
        if d and ((a * 256 + b) * 256 + c) * 256 + d > cut then
          local at = call('ZSCORE', index, entry)
          call('ZREM', index, entry)
          call('HDEL', K(tag, 'd:' .. m), log .. string.format('%.0f', tonumber(at)))
        end
      end
    end
  end
  free_keys(tag, m, cut)
  -- Last: a server that is full lets a script go on that began by removing something.
  call('HSET', rows, 'h', head)
end

-- name: append full
-- KEYS: the rows of a line. As APPEND, with everything that a row may bring along.
local rows, h = KEYS[1], call('HGET', KEYS[1], 'h')
local gone = erased_of(A.sealed)
if A.retry and h then
  if h == A.head or call('HGET', rows, A.seq) == A.value then return 1 end
  if byte(h, 1) == 97 and call('HEXISTS', rows, A.seq) == 0 and seq_of(h) >= A.seq then return {'?'} end
end
if gone then return gone end
if is_over(rows) then return {false} end
if A.guard and call('HEXISTS', K(A.tag, 'k:' .. A.guard), A.key) == 1 then return {'key'} end
if A.source then
  local gone = is_pruned(A.tag, A.source[1], A.source[2])
  if gone or gone == nil then return {'version'} end
end
if not h or sub(h, 1, #A.expected) ~= A.expected then return {h or false} end
call('HSET', rows, 'h', A.head, A.seq, A.value)
if A.single then tags_behind(rows) end
add_chunks(A.tag, A.m, A.chunks)
add_sealed(A.sealed)
live(rows, A.ttl)
call(A.publish, rows, '')
return 1

-- name: create
-- KEYS: the family. A line, and on a single server, or where they share the slot, its name.
local fam = K(A.tag, 'f')
local known = call('HGET', fam, 'u' .. A.uid)
if known then
  local l = call('HMGET', K(A.tag, 'l:' .. known), 'r', 'w')
  -- The line of this call, or of an earlier one that got stuck on the way to its name.
  local same = l[2] and A.waits and call('HGET', K(A.tag, 'r:' .. known), 'h') == A.head
  return {(A.retry or same) and 'known' or 'taken', known, l[1]}
end
if A.source then
  if not is_alive(A.tag, A.source) then return {'source'} end
  local gone = is_pruned(A.tag, A.parent, A.parent_seq)
  if gone == nil then return {'source'} end
  if gone then return {'version'} end
end
local stale
if not A.waits then
  local ref = call('HGET', K(A.name_tag, 'f'), 'n' .. A.digest)
  if ref then
    local tag, m = string.match(ref, '^(%x+):(%d+)$')
    if tag ~= A.tag and not A.single then
      if ref ~= A.stale then return {'taken', ref} end
    elseif is_alive(tag, m) then
      return {'taken', ref}
    end
    stale = (tag == A.tag or A.single) and {tag, m}
  end
  if A.token and call('EXISTS', K(A.name_tag, 'void:' .. A.token)) == 1 then return {'void'} end
end
local gone = erased_of(A.sealed)
if gone then return gone end
local m = call('HINCRBY', fam, 'c', 1)
call('HSET', fam, 'u' .. A.uid, m)
local l = K(A.tag, 'l:' .. m)
call('HSET', l, 'm', A.value, 'r', A.root or m, 'N', A.name_tag .. ':' .. A.digest)
if A.parent then
  call('HSET', l, 'p', A.parent, 's', A.parent_seq)
  part(K(A.tag, 'r:' .. A.parent), m)
end
call('HSET', K(A.tag, 'r:' .. m), 'h', A.head)
if A.single then call('HSET', K(A.tag, 'r:' .. m), 'U', K(A.space, 'U')) end
if A.seq then
  if A.single then tags_behind(K(A.tag, 'r:' .. m)) end
  call('HSET', K(A.tag, 'r:' .. m), A.seq, A.row)
  add_chunks(A.tag, m, A.chunks)
  add_sealed(A.sealed)
end
each(A.tags, 1000, function(...) call('HSET', K(A.tag, 't:' .. m), ...) end)
if A.ttl or A.parent then live(K(A.tag, 'r:' .. m), A.ttl, true) end
if A.waits then
  call('HSET', l, 'w', call('TIME')[1])
else
  call('HSET', K(A.name_tag, 'f'), 'n' .. A.digest, A.tag .. ':' .. m)
  if stale then shed(stale[1], stale[2]) end
end
if A.single then
  call('ZADD', K('root', 'S'), 0, A.space_name)
  call('ZADD', K(A.space, 'N'), 0, A.name)
  call('HSET', K('u' .. string.format('%x', math.floor(byte(A.uid, 1) / 16)), 'u'), A.uid, A.tag)
  call('ZADD', K('t' .. sub(A.tag, 1, 1), 't'), 0, A.tag)
  for _, place in ipairs(A.places) do
    call('ZADD', K(A.space, 'g:' .. place), 0, A.tag .. ':' .. string.format('%.0f', m))
  end
end
call('PUBLISH', P .. ':news', '')
return {'made', m, A.root or m}

-- name: claim
-- KEYS: the family of a name. In a cluster, for a line of another slot: it gets the name, if that is free.
local ref = call('HGET', KEYS[1], 'n' .. A.digest)
if ref and ref ~= A.stale and ref ~= A.ref then return {'taken', ref} end
if not ref and call('EXISTS', K(A.name_tag, 'void:' .. A.token)) == 1 then return {'void'} end
call('HSET', KEYS[1], 'n' .. A.digest, A.ref)
return {'made'}

-- name: settle
-- KEYS: the rows of a line. It has its name now; or is given up, as if it had never been.
local l = K(A.tag, 'l:' .. A.m)
if call('HEXISTS', l, 'd') == 1 then return 0 end
if A.keep then call('HDEL', l, 'w') return 1 end
if call('HEXISTS', l, 'w') == 0 then return 0 end
call('HSET', l, 'd', 'given up')
call('HDEL', l, 'w')
local rows = K(A.tag, 'r:' .. A.m)
call('HSET', rows, 'h', 'd' .. sub(call('HGET', rows, 'h'), 2))
keep_until(rows, (call('TIME')[1] + 3600) * 1000)
reckon(parent_of(rows))
return 1

-- name: free
-- KEYS: the family of a name. It is free, if it belongs to that line, or to nobody; and no line
-- is made any more by a process that listed it with this token.
local ref = call('HGET', KEYS[1], 'n' .. A.digest)
if ref and ref ~= A.ref then return 0 end
if ref then call('HDEL', KEYS[1], 'n' .. A.digest) end
if A.token then call('SET', K(A.name_tag, 'void:' .. A.token), '1', 'EX', 86400) end
return 1

-- name: fold
-- KEYS: the rows of a line.
local rows, seqs = KEYS[1], {}
for seq = A.first, A.last do seqs[#seqs + 1] = seq end
for i = 1, #seqs, 1000 do
  for _, v in ipairs(call('HMGET', rows, unpack(seqs, i, math.min(i + 999, #seqs)))) do
    if not v or kind_of(v) ~= 0 then return 0 end
  end
end
if hash_of(call('HGET', rows, A.last)) ~= A.hash then return 0 end
local before = not A.beside and call('HGET', rows, A.first - 1)
if before and kind_of(before) == 0 then return 0 end
local gone = {}
for seq = A.first, A.last do
  gone[#gone + 1] = seq
  gone[#gone + 1] = seq .. 'k'
end
each(gone, 1000, function(...) call('HDEL', rows, ...) end)
call('HSET', rows, A.last, A.value, A.last .. 'b', A.body, A.last .. 'n', A.net)
if A.keyframe then call('HSET', rows, A.last .. 'k', A.keyframe) end
call('ZADD', K(A.tag, 'z:' .. A.m), A.last, string.format('%.0f', A.last))
add_chunks(A.tag, A.m, A.chunks)
local keyed, names = K(A.tag, 'k:' .. A.root), {}
for _, k in ipairs(A.keys) do
  local was = call('HGET', keyed, k[1])
  local mine = string.format('%.0f:%.0f', A.m, k[2])
  call('HSET', keyed, k[1], was and was .. ',' .. mine or mine)
  names[#names + 1] = k[1]
end
if #names > 0 then
  call('APPEND', K(A.tag, 'K:' .. A.m), table.concat(names))
  expire(keyed, moment(K(A.tag, 'r:' .. A.root)))
end
local old = set_tags(A.tag, A.m, A.last, A.tags)
renew(rows)
return {1, old}

-- name: tag
-- KEYS: the rows of a line.
local old = set_tags(A.tag, A.m, A.seq, A.tags)
renew(KEYS[1])
return old

-- name: keyframe
-- KEYS: the rows of a line. ARGV: seq, hash, keyframe.
local v = call('HGET', KEYS[1], ARGV[2])
if v and hash_of(v) == ARGV[3] then call('HSET', KEYS[1], ARGV[2] .. 'k', ARGV[4]) end
return 1

-- name: delete
-- KEYS: the rows of a line. The seal, then whatever no living line reaches any more.
local tag, m = A.tag, A.m
local l, rows = K(tag, 'l:' .. m), KEYS[1]
local d = call('HMGET', l, 'd', 'm', 'N')
if not d[2] then return {0} end
if d[1] then return {A.retry and d[1] == A.token and 1 or 0, d[3]} end
if is_over(rows) then return {0} end
local h = call('HGET', rows, 'h')
if A.newest and sub(h, 3, 2 + byte(h, 2)) ~= A.newest then return {0} end
call('HSET', l, 'd', A.token)
call('HSET', rows, 'h', 'd' .. sub(h, 2))
call('HDEL', rows, 'e')
call('UNLINK', K(tag, 'e:' .. m))
local untagged = A.single and call('HGET', rows, 'U')
if untagged then call('SREM', untagged, rows) end
local name_tag, digest = sub(d[3], 1, 8), sub(d[3], 10)
if A.single or name_tag == tag then
  local fam = K(name_tag, 'f')
  if call('HGET', fam, 'n' .. digest) == tag .. ':' .. m then
    call('HDEL', fam, 'n' .. digest)
    if A.single then call('ZREM', K(A.space, 'N'), A.name) end
  end
end
local function needed(m)
  if call('HEXISTS', K(tag, 'l:' .. m), 'd') == 0 then return true end
  for _, c in ipairs(call('SMEMBERS', K(tag, 'c:' .. m))) do
    local s = call('HMGET', K(tag, 'l:' .. c), 'd', 'x', 's')
    if s[3] and not s[1] then return true end
    if s[3] and not s[2] and seq_of(call('HGET', K(tag, 'r:' .. c), 'h')) > tonumber(s[3]) then return true end
  end
  return false
end
local at = m
while at and not needed(at) do
  local line, store = K(tag, 'l:' .. at), K(tag, 'r:' .. at)
  local head, fields, over = call('HGET', store, 'h'), call('HKEYS', line), moment(store)
  free_keys(tag, at, 0)
  for _, field in ipairs(fields) do
    if byte(field, 1) == 103 then
      call('UNLINK', K(tag, 'x:' .. at .. ':' .. hex(sub(field, 2))))
      call('HDEL', line, field)
    end
  end
  call('UNLINK', store, K(tag, 'z:' .. at), K(tag, 'd:' .. at), K(tag, 't:' .. at), K(tag, 'K:' .. at))
  call('HSET', store, 'h', head)
  call('HSET', line, 'x', '1')
  -- A seal that nobody needs any more than the line goes when the line would have gone.
  keep_until(store, over)
  at = call('HGET', line, 'p')
end
reckon(at and K(tag, 'r:' .. at))
call(A.publish, rows, '')
return {1, d[3]}

-- name: prune
-- KEYS: the rows of a line.
local tag, rows, known = A.tag, KEYS[1], {}
-- Every move to an archive has a label of its own: if it stands there, the first try has landed.
local moved = A.retry and A.rows[1]
if moved and kind_of(moved[3]) == 6 and call('HGET', rows, moved[1] .. 'b') == moved[4] then return 1 end
for _, s in ipairs(A.seen) do known[tostring(s[1])] = true end
for _, s in ipairs(A.seen) do
  local other = K(tag, 'r:' .. s[1])
  local h = call('HGET', other, 'h')
  local at = h and seq_of(h) or 0
  while at > s[2] do
    local v = call('HGET', other, at)
    if not v then break end
    -- A rewind, or what was pruned or moved to an archive since, which may have been one.
    local kind = kind_of(v)
    if kind == 2 or kind == 5 or kind == 6 then return 0 end
    at = first_of(v) - 1
  end
  for _, c in ipairs(call('SMEMBERS', K(tag, 'c:' .. s[1]))) do
    if not known[c] and call('EXISTS', K(tag, 'l:' .. c)) == 1 then return 0 end
  end
end
for _, o in ipairs(A.old) do
  local v = call('HGET', rows, o[1])
  if not v or sub(v, 1, #o[2]) ~= o[2] then return 0 end
  local size
  if o[3] then
    size = call('HSTRLEN', rows, o[1] .. 'b')
  else
    local start = 7 + byte(v, 6)
    size = #v - start - byte(v, start) - 4
  end
  if size ~= o[4] or (o[7] and call('HGET', rows, o[1] .. 'b') ~= o[7]) then return 0 end
  for i, ending in ipairs({'n', 'k'}) do
    local there = call('HEXISTS', rows, o[1] .. ending) == 1
    if there ~= (o[4 + i] ~= false) then return 0 end
    if there and call('HSTRLEN', rows, o[1] .. ending) ~= o[4 + i] then return 0 end
  end
end
for _, d in ipairs(A.dropped) do
  for _, entry in ipairs(d[2]) do
    if not call('ZSCORE', K(tag, 'x:' .. A.m .. ':' .. hex(d[1])), entry) then return {'again'} end
  end
end
-- A server that is full lets a script go on that began by removing something: ask before that.
if A.grows then call('HSET', rows, 'h', call('HGET', rows, 'h')) end
local packs = K(tag, 'z:' .. A.m)
for _, o in ipairs(A.keep and {} or A.old) do
  call('HDEL', rows, o[1], o[1] .. 'b', o[1] .. 'n', o[1] .. 'k')
  call('ZREM', packs, string.format('%.0f', o[1]))
end
for _, r in ipairs(A.rows) do
  call('HSET', rows, r[1], r[3])
  if r[2] then
    call('HSET', rows, r[1] .. 'b', r[4])
    call('ZADD', packs, r[1], string.format('%.0f', r[1]))
  end
  if r[5] then call('HSET', rows, r[1] .. 'n', r[5]) end
  if r[6] then call('HSET', rows, r[1] .. 'k', r[6]) end
end
for _, d in ipairs(A.dropped) do
  local index, data = K(tag, 'x:' .. A.m .. ':' .. hex(d[1])), K(tag, 'd:' .. A.m)
  for _, entry in ipairs(d[2]) do
    local at = call('ZSCORE', index, entry)
    call('ZREM', index, entry)
    call('HDEL', data, d[1] .. string.format('%.0f', tonumber(at)))
  end
  add_chunks(tag, A.m, d[3])
end
renew(rows)
return 1

-- name: shed
-- KEYS: the rows of a line.
shed(A.tag, A.m)
return 1

-- name: forget
-- KEYS: the family of a name. On a single server: a name that leads to a line which the server has removed is
-- free, and off the lists.
local ref = call('HGET', KEYS[1], 'n' .. A.digest)
if ref then
  local tag, m = string.match(ref, '^(%x+):(%d+)$')
  if is_alive(tag, m) then return 0 end
  shed(tag, m)
  call('HDEL', KEYS[1], 'n' .. A.digest)
  call('SREM', K(A.space, 'U'), K(tag, 'r:' .. m))
  local all = call('EXISTS', K(tag, 'l:' .. m)) == 0 and call('HGETALL', K(tag, 'f')) or {}
  for i = 1, #all, 2 do
    if byte(all[i], 1) == 117 and call('EXISTS', K(tag, 'l:' .. all[i + 1])) == 0 then
      local uid = sub(all[i], 2)
      call('HDEL', K(tag, 'f'), all[i])
      call('HDEL', K('u' .. string.format('%x', math.floor(byte(uid, 1) / 16)), 'u'), uid)
    end
  end
end
call('ZREM', K(A.space, 'N'), A.name)
return 1

-- name: list
-- KEYS: the list of names of a space. In a cluster, before a line is made. ARGV: name, its digest, token.
redis.call('ZADD', KEYS[1], 0, ARGV[2])
redis.call('HSET', KEYS[2], ARGV[3], ARGV[4])
return 1

-- name: unlist
-- KEYS: list of names, tokens. ARGV: name, its digest, token. Off the list, unless somebody listed it anew.
local there = redis.call('HGET', KEYS[2], ARGV[3])
if there and there ~= ARGV[4] then return 0 end
redis.call('ZREM', KEYS[1], ARGV[2])
redis.call('HDEL', KEYS[2], ARGV[3])
return 1

-- name: unindex
-- KEYS: an index of a tag's value. ARGV: line, seq. Out of it, unless it was put in anew.
local score = redis.call('ZSCORE', KEYS[1], ARGV[2])
if score and tonumber(score) < tonumber(ARGV[3]) then return redis.call('ZREM', KEYS[1], ARGV[2]) end
return 0
