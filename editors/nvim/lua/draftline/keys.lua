-- The keys: each acts while there is something to act on, and else does what it did before.
local api = vim.api

local M = {}

local ours = {} ---@type table<integer, table<string, table>> buffer -> key -> the mapping that was the buffer's own

local function codes(keys)
  return api.nvim_replace_termcodes(keys, true, true, true)
end

---The global mapping as it is now: one made after ours counts too.
local function global(key)
  for _, mapping in ipairs(api.nvim_get_keymap('i')) do
    if codes(mapping.lhs) == codes(key) then
      return mapping
    end
  end
end

---What the key did before.
local function fall_back(bufnr, key)
  local before = (ours[bufnr] or {})[key]
  local mapping = before and next(before) and before or global(key)
  if not mapping then
    return api.nvim_feedkeys(codes(key), 'ni', false)
  end
  local keys = mapping.rhs and codes(mapping.rhs) or ''
  if mapping.expr == 1 then
    local made = mapping.callback and mapping.callback() or (mapping.rhs and api.nvim_eval(mapping.rhs)) or ''
    keys = mapping.replace_keycodes == 1 and codes(made) or made
  elseif mapping.callback then
    return mapping.callback()
  elseif mapping.sid and mapping.rhs then
    keys = codes((mapping.rhs:gsub('<SID>', ('<SNR>%d_'):format(mapping.sid))))
  end
  -- A mapping whose result begins with its own key doesn't run again, or it would never end.
  local again = mapping.noremap == 0 and not vim.startswith(keys, codes(key))
  api.nvim_feedkeys(keys, again and 'mi' or 'ni', false)
end

---@param actions table<string, fun(): boolean> name -> what it does; false: it had nothing to act on
function M.attach(bufnr, keys, actions)
  M.detach(bufnr)
  ours[bufnr] = {}
  for name, key in pairs(keys) do
    if key then
      local before = api.nvim_buf_call(bufnr, function()
        return vim.fn.maparg(key, 'i', false, true)
      end)
      ours[bufnr][key] = before.buffer == 1 and before or {}
      vim.keymap.set('i', key, function()
        if not actions[name]() then
          fall_back(bufnr, key)
        end
      end, { buffer = bufnr, desc = 'Draftline: ' .. name:gsub('_', ' ') })
    end
  end
end

function M.detach(bufnr)
  local before = ours[bufnr]
  ours[bufnr] = nil
  if not before or not api.nvim_buf_is_valid(bufnr) then
    return
  end
  for key, mapping in pairs(before) do
    pcall(vim.keymap.del, 'i', key, { buffer = bufnr })
    if next(mapping) then
      api.nvim_buf_call(bufnr, function()
        vim.fn.mapset('i', false, mapping)
      end)
    end
  end
end

return M
