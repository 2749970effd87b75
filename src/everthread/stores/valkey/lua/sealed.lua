-- Sealed values and the erasure ledger. A sealed value lies in one of sixteen registers by the first digit of
-- its id; beside it, by key id, the ids of the values that need the key, and a copy of the ids of erased keys,
-- so that one slot can decide by itself.

-- name: arguments
-- What the scripts that get one packed table besides the prefix begin with.
local P = ARGV[1]
local A = cmsgpack.unpack(ARGV[2])

-- name: for sealed
-- What every script has that takes sealed values. Each is: register, value id, value (key ids and data,
-- nothing if it is there already), its key ids.
local function sealed_key(register, kind) return P .. ':{v' .. register .. '}:' .. kind end
local function raw_hex(raw)
  return (string.gsub(raw, '.', function(c) return string.format('%02x', string.byte(c)) end))
end
-- the keys among those needed that were erased
local function erased_of(sealed)
  local gone, seen = {'erased'}, {}
  for _, s in ipairs(sealed) do
    for _, key in ipairs(s[4]) do
      if not seen[key] and redis.call('SISMEMBER', sealed_key(s[1], 'x'), key) == 1 then
        gone[#gone + 1] = key
      end
      seen[key] = true
    end
  end
  return #gone > 1 and gone or nil
end
local function add_sealed(sealed)
  for _, s in ipairs(sealed) do
    if s[3] ~= '' and redis.call('HSETNX', sealed_key(s[1], 'v'), s[2], s[3]) == 1 then
      for _, key in ipairs(s[4]) do redis.call('ZADD', sealed_key(s[1], 'k:' .. raw_hex(key)), 0, s[2]) end
    end
  end
end

-- name: take sealed
-- KEYS: one register. In a cluster, before the row that refers to them: check all keys, take some values.
local gone = erased_of(A.check)
if gone then return gone end
add_sealed(A.sealed)
return 1

-- name: drop sealed
-- KEYS: the ledger, or one register in a cluster. ARGV: registers, key ids. How many values are gone.
local count = 0
for _, register in ipairs(A.registers) do
  for _, key in ipairs(A.keys) do
    for _, id in ipairs(redis.call('ZRANGE', sealed_key(register, 'k:' .. raw_hex(key)), 0, -1)) do
      local value = redis.call('HGET', sealed_key(register, 'v'), id)
      if value then
        count = count + redis.call('HDEL', sealed_key(register, 'v'), id)
        local keys = string.byte(value, 1) * 256 + string.byte(value, 2)
        for at = 3, keys + 2, 16 do
          redis.call('ZREM', sealed_key(register, 'k:' .. raw_hex(string.sub(value, at, at + 15))), id)
        end
      end
    end
    redis.call('UNLINK', sealed_key(register, 'k:' .. raw_hex(key)))
  end
end
return count

-- name: sealed under
-- KEYS: one register. ARGV: key ids (none: all values), the value id to go on after, limit. Ids and values, in
-- order.
local found, seen = {}, {}
if not A.keys then
  local after = raw_hex(A.after)
  for _, id in ipairs(redis.call('HKEYS', sealed_key(A.register, 'v'))) do
    if raw_hex(id) > after then found[#found + 1] = id end
  end
end
for _, key in ipairs(A.keys or {}) do
  local place = sealed_key(A.register, 'k:' .. raw_hex(key))
  for _, id in ipairs(redis.call('ZRANGEBYLEX', place, '(' .. A.after, '+', 'LIMIT', 0, A.limit)) do
    if not seen[id] then found[#found + 1] = id end
    seen[id] = true
  end
end
table.sort(found)
local out = {}
for i = 1, math.min(#found, A.limit) do
  local value = redis.call('HGET', sealed_key(A.register, 'v'), found[i])
  if value then
    out[#out + 1] = found[i]
    out[#out + 1] = value
  end
end
return out

-- name: refuse
-- KEYS: one register. ARGV: key ids. From here on it takes nothing that needs one of them.
for _, register in ipairs(A.registers) do
  for _, key in ipairs(A.keys) do redis.call('SADD', sealed_key(register, 'x'), key) end
end
return 1

-- name: note
-- KEYS: the ledger, its unfinished entries. ARGV: entries (key id, phase, when noted, erasure, note), and the
-- registers that are to refuse their keys, where one script reaches them.
for _, e in ipairs(A.entries) do
  local known = redis.call('HGET', KEYS[1], e[1])
  local phase, noted, erasure, note = e[2], e[3], raw_hex(e[4]), e[5]
  local earlier = false
  if known then
    local was, when, which = string.match(known, '^(%d+) (%d+) (%x*) ')
    if phase < tonumber(was) then earlier = true end
    noted, erasure = when, which
  end
  if not earlier then
    local told = string.format('%.0f', phase) .. ' ' .. noted .. ' ' .. erasure .. ' ' .. note
    redis.call('HSET', KEYS[1], e[1], told)
    redis.call(phase < 5 and 'SADD' or 'SREM', KEYS[2], e[1])
  end
  for _, register in ipairs(A.registers) do redis.call('SADD', sealed_key(register, 'x'), e[1]) end
end
return 1

-- name: sealed usage
-- KEYS: one register of sealed values. How many, and their bytes.
local count, bytes = 0, 0
for _, value in ipairs(redis.call('HVALS', KEYS[1])) do
  local keys = string.byte(value, 1) * 256 + string.byte(value, 2)
  count, bytes = count + 1, bytes + #value - 2 - keys
end
return {count, bytes}
