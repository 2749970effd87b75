"""The scripts of backups. The pattern is the prefix of the store, or of one tag of it: letters and digits
that were checked, nothing of a caller's."""

from __future__ import annotations

#: ARGV: pattern. Everything, at one moment: key, kind, content.
READ_ALL = """
local out = {}
for _, key in ipairs(redis.call('KEYS', ARGV[1])) do
  local kind = redis.call('TYPE', key)['ok']
  local content = false
  if kind == 'hash' then content = redis.call('HGETALL', key)
  elseif kind == 'zset' then content = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
  elseif kind == 'set' then content = redis.call('SMEMBERS', key)
  elseif kind == 'string' then
    content = {redis.call('GET', key)}
  elseif kind == 'stream' then
    local entries = redis.call('XRANGE', key, '-', '+')
    local groups = {}
    for _, g in ipairs(redis.call('XINFO', 'GROUPS', key)) do
      local told = {}
      for i = 1, #g, 2 do told[g[i]] = g[i + 1] end
      groups[#groups + 1] = told['name']
      groups[#groups + 1] = told['last-delivered-id']
    end
    content = {entries, groups}
  end
  if redis.call('PTTL', key) < 0 then out[#out + 1] = {key, kind, content} end
end
return out
"""

#: ARGV: pattern. Nothing is left.
WIPE = """
for _, key in ipairs(redis.call('KEYS', ARGV[1])) do redis.call('UNLINK', key) end
return 1
"""
