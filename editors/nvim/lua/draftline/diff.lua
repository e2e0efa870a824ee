-- An edit on the screen: old lines marked, new ones below them, and keys that take or leave them.
local api = vim.api
local config = require('draftline.config')
local state = require('draftline.state')

local M = {}

local namespace = api.nvim_create_namespace('draftline.diff')

---@class draftline.Diff
---@field bufnr integer
---@field encoding string
---@field tick integer of the text that the edit is for
---@field hunks { start: integer, end: integer, lines: string[] }[] lines from 0
---@field edits table[] of the protocol, one for each hunk; none as long as the answer is being written
---@field ready boolean
---@field cancel fun()?
---@field before table<string, table> key -> the buffer's own mapping
---@field group integer
local diffs = {} ---@type table<integer, draftline.Diff>

local function draw(shown)
  api.nvim_buf_clear_namespace(shown.bufnr, namespace, 0, -1)
  local last = api.nvim_buf_line_count(shown.bufnr)
  for _, hunk in ipairs(shown.hunks) do
    for row = hunk.start, math.min(hunk['end'], last) - 1 do
      api.nvim_buf_set_extmark(shown.bufnr, namespace, row, 0, { line_hl_group = 'DraftlineOld' })
    end
    if #hunk.lines > 0 then
      local row = math.max(math.min(hunk['end'], last) - 1, 0)
      api.nvim_buf_set_extmark(shown.bufnr, namespace, row, 0, {
        virt_lines_above = hunk['end'] == 0,
        virt_lines = vim.tbl_map(function(line)
          return { { line == '' and ' ' or line, 'DraftlineNew' } }
        end, hunk.lines),
      })
    end
  end
end

local function remove_keys(shown)
  for key, mapping in pairs(shown.before) do
    pcall(vim.keymap.del, 'n', key, { buffer = shown.bufnr })
    if next(mapping) then
      api.nvim_buf_call(shown.bufnr, function()
        vim.fn.mapset('n', false, mapping)
      end)
    end
  end
end

local function add_keys(shown)
  for name, key in pairs(config.current.edit_keys) do
    if key then
      local before = api.nvim_buf_call(shown.bufnr, function()
        return vim.fn.maparg(key, 'n', false, true)
      end)
      shown.before[key] = before.buffer == 1 and before or {}
      vim.keymap.set('n', key, function()
        M[name](shown)
      end, { buffer = shown.bufnr, desc = 'Draftline: ' .. name:gsub('_', ' ') })
    end
  end
end

---An edit of the buffer begins; one that is shown goes.
---@return draftline.Diff
function M.begin(bufnr, encoding)
  if diffs[bufnr] then
    M.reject(diffs[bufnr])
  end
  local shown = {
    bufnr = bufnr,
    encoding = encoding,
    tick = api.nvim_buf_get_changedtick(bufnr),
    hunks = {},
    edits = {},
    ready = false,
    before = {},
    group = api.nvim_create_augroup('draftline.diff.' .. bufnr, {}),
  }
  diffs[bufnr] = shown
  add_keys(shown)
  api.nvim_create_autocmd({ 'TextChanged', 'TextChangedI', 'TextChangedP' }, {
    group = shown.group,
    buffer = bufnr,
    callback = function()
      M.is_current(shown)
    end,
  })
  api.nvim_create_autocmd('BufWipeout', {
    group = shown.group,
    buffer = bufnr,
    callback = function()
      M.reject(shown)
    end,
  })
  return shown
end

---@return draftline.Diff?
function M.of(bufnr)
  return diffs[bufnr]
end

function M.close(shown)
  if diffs[shown.bufnr] ~= shown then
    return
  end
  diffs[shown.bufnr] = nil
  api.nvim_del_augroup_by_id(shown.group)
  if api.nvim_buf_is_valid(shown.bufnr) then
    api.nvim_buf_clear_namespace(shown.bufnr, namespace, 0, -1)
    remove_keys(shown)
  end
end

---Whether the text is the one that the edit is for; else the edit goes, and it is told.
function M.is_current(shown)
  if diffs[shown.bufnr] ~= shown then
    return false
  elseif api.nvim_buf_get_changedtick(shown.bufnr) == shown.tick then
    return true
  end
  M.reject(shown)
  state.tell('the text has changed: the edit is withdrawn, and nothing of it was applied', vim.log.levels.WARN)
  return false
end

---What is certain so far of an answer that is being written.
function M.update(shown, hunks)
  if M.is_current(shown) then
    shown.hunks = hunks
    draw(shown)
  end
end

---@param result table of `draftline/edit`
function M.finish(shown, result)
  shown.ready, shown.cancel = true, nil
  shown.hunks, shown.edits = result.hunks, result.edits
  if M.is_current(shown) then
    draw(shown)
    local keys = config.current.edit_keys
    local words = {}
    for _, name in ipairs({ 'accept', 'accept_hunk', 'reject_hunk', 'reject' }) do
      if keys[name] then
        table.insert(words, ('%s %s'):format(keys[name], (name:gsub('_', ' '))))
      end
    end
    api.nvim_echo({ { 'Draftline: ' .. table.concat(words, ', ') } }, false, {})
  end
end

local function may_apply(shown)
  if not shown.ready then
    state.tell('the edit is still being written', vim.log.levels.INFO)
    return false
  end
  return M.is_current(shown)
end

local function hunk_at_cursor(shown)
  local row = api.nvim_win_get_cursor(0)[1] - 1
  for index, hunk in ipairs(shown.hunks) do
    if row <= math.max(hunk['end'] - 1, hunk.start) then
      return index
    end
  end
  return #shown.hunks
end

---All that is left of it, in one step of undo.
function M.accept(shown)
  if may_apply(shown) then
    M.close(shown)
    vim.lsp.util.apply_text_edits(shown.edits, shown.bufnr, shown.encoding)
  end
end

local function leave_out(shown, index)
  table.remove(shown.hunks, index)
  table.remove(shown.edits, index)
  if #shown.hunks == 0 then
    M.close(shown)
  else
    draw(shown)
  end
end

---The hunk at the cursor, else the next one.
function M.accept_hunk(shown)
  if not may_apply(shown) then
    return
  end
  local index = hunk_at_cursor(shown)
  local hunk, edit = shown.hunks[index], shown.edits[index]
  local more = #hunk.lines - (hunk['end'] - hunk.start)
  vim.lsp.util.apply_text_edits({ edit }, shown.bufnr, shown.encoding)
  shown.tick = api.nvim_buf_get_changedtick(shown.bufnr)
  for later = index + 1, #shown.hunks do
    local moved, range = shown.hunks[later], shown.edits[later].range
    moved.start, moved['end'] = moved.start + more, moved['end'] + more
    range.start.line, range['end'].line = range.start.line + more, range['end'].line + more
  end
  leave_out(shown, index)
end

function M.reject_hunk(shown)
  if may_apply(shown) then
    leave_out(shown, hunk_at_cursor(shown))
  end
end

---All that is left; an answer that is being written is stopped.
function M.reject(shown)
  if shown.cancel then
    shown.cancel()
  end
  M.close(shown)
end

return M
