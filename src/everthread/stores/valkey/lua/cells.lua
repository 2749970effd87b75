-- Cells: values with a revision, compared and replaced.

-- name: for cells
-- A cell is kept as: revision, when it was written, the token of that write, value.
local function now()
  local t = redis.call('TIME')
  return tonumber(t[1]) * 1000000 + tonumber(t[2])
end
local function num(n) return string.format('%.0f', n) end
local function read(cell)
  local revision, written, token, at = string.match(cell, '^(%d+) (%d+) (%x+) ()')
  return tonumber(revision), written, token, string.sub(cell, at)
end

-- name: cell
-- KEYS: the cells of a space. ARGV: name. Value, revision, when written, now.
local there = redis.call('HGET', KEYS[1], ARGV[1])
if not there then return false end
local revision, written, _, value = read(there)
return {value, num(revision), written, num(now())}

-- name: swap
-- KEYS: cells, their names in order, where the floor is. ARGV: name, expected revision, whether there is a
-- value, value, token, whether an earlier try may have landed. The new revision, or what stands there.
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

-- name: cells
-- KEYS: cells, their names in order. ARGV: from where, up to where, limit. Name, value, revision, times.
local out, at = {}, num(now())
for _, name in ipairs(redis.call('ZRANGEBYLEX', KEYS[2], ARGV[1], ARGV[2], 'LIMIT', 0, ARGV[3])) do
  local there = redis.call('HGET', KEYS[1], name)
  if there then
    local revision, written, _, value = read(there)
    out[#out + 1] = {name, value, num(revision), written, at}
  end
end
return out

-- name: cells usage
-- KEYS: the cells of a space. How many, and their bytes.
local count, bytes = 0, 0
for _, value in ipairs(redis.call('HVALS', KEYS[1])) do
  local _, _, _, at = string.match(value, '^(%d+) (%d+) (%x+) ()')
  count, bytes = count + 1, bytes + #value - at + 1
end
return {count, bytes}
