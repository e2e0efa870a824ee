-- Ghost text of our own, for Neovim 0.10 and 0.11: asks while one types, draws extmarks, keeps what is typed along.
local api = vim.api
local Offer = require('draftline.offer')
local rpc = require('draftline.rpc')
local wanted = require('draftline.wanted')

local M = {}

local AUTOMATIC, INVOKED = 2, 1
local TOGETHER_MS = 5 -- events of one key

local namespace = api.nvim_create_namespace('draftline')

---@class draftline.Ghost
---@field client vim.lsp.Client
---@field offers draftline.Offer[]
---@field index integer
local states = {} ---@type table<integer, draftline.Ghost>

local function draw(bufnr, offer, rest, hint)
  api.nvim_buf_clear_namespace(bufnr, namespace, 0, -1)
  local lines = vim.split(rest.text, '\n', { plain = true })
  local first = lines[1]
  local mark = { virt_text_pos = 'inline', hl_mode = 'combine' }
  if rest.replaces ~= '' or (#lines > 1 and offer.tail ~= '') then
    -- What follows in the line moves behind the end of the item.
    mark.virt_text_pos = 'overlay'
    lines[#lines] = lines[#lines] .. offer.tail
    first = lines[1]
    local covered = vim.fn.strdisplaywidth(rest.replaces .. offer.tail)
    first = first .. (' '):rep(covered - vim.fn.strdisplaywidth(first))
  end
  mark.virt_text = { { first, 'DraftlineGhost' } }
  mark.virt_lines = vim.tbl_map(function(line)
    return { { line, 'DraftlineGhost' } }
  end, { unpack(lines, 2) })
  if hint then
    table.insert(#lines > 1 and mark.virt_lines[#lines - 1] or mark.virt_text, { hint, 'DraftlineHint' })
  end
  api.nvim_buf_set_extmark(bufnr, namespace, rest.row, rest.col, mark)
  offer:tell_shown()
end

local function cancel(state)
  if state.request then
    rpc.cancel(state.client, state.request)
    state.request = nil
  end
end

local function clear(bufnr)
  states[bufnr].offers = {}
  api.nvim_buf_clear_namespace(bufnr, namespace, 0, -1)
end

---Show again what is left of the item; false where it fits no more.
local function show(bufnr, hint)
  local state = states[bufnr]
  local offer = state.offers[state.index]
  local rest = offer and offer:rest()
  if rest then
    draw(bufnr, offer, rest, hint)
  end
  return rest ~= nil
end

local function place(bufnr)
  local cursor = api.nvim_win_get_cursor(0)
  return ('%d:%d:%d'):format(api.nvim_buf_get_changedtick(bufnr), cursor[1], cursor[2])
end

local function hint_of(state)
  return #state.offers > 1 and (' (%d/%d)'):format(state.index, #state.offers) or nil
end

local function ask(bufnr, kind)
  local state = states[bufnr]
  local here = place(bufnr)
  state.asked = here
  cancel(state)
  local params = {
    textDocument = { uri = vim.uri_from_bufnr(bufnr) },
    position = rpc.position(bufnr, state.client),
    context = { triggerKind = kind },
  }
  local id
  id = rpc.request(state.client, 'textDocument/inlineCompletion', params, function(err, result)
    if states[bufnr] ~= state or state.request ~= id then
      return
    end
    state.request = nil
    local typing = api.nvim_get_mode().mode:sub(1, 1) == 'i' and api.nvim_get_current_buf() == bufnr
    if err or type(result) ~= 'table' or not typing or place(bufnr) ~= here then
      return
    end
    local offers = {}
    for _, item in ipairs(result.items or result) do
      offers[#offers + 1] = Offer.new(state.client, bufnr, item)
    end
    if #offers > 0 then
      -- The one that was on the screen when others were asked for is the first of them.
      state.offers, state.index = offers, 1
      show(bufnr, hint_of(state))
    end
  end, bufnr)
  state.request = id
end

---After a key: go on with the item if what was typed is its own text, else ask anew.
local function changed(bufnr)
  local state = states[bufnr]
  if not state or api.nvim_get_current_buf() ~= bufnr then
    return
  end
  if not wanted(bufnr) then
    cancel(state)
    return clear(bufnr)
  end
  if show(bufnr) then
    return
  end
  clear(bufnr)
  if state.asked == place(bufnr) then
    return
  end
  cancel(state)
  state.timer:stop()
  state.timer:start(TOGETHER_MS, 0, vim.schedule_wrap(function()
    local insert = api.nvim_get_mode().mode:sub(1, 1) == 'i'
    if states[bufnr] == state and insert and api.nvim_get_current_buf() == bufnr and state.asked ~= place(bufnr) then
      ask(bufnr, AUTOMATIC)
    end
  end))
end

function M.attach(client, bufnr)
  M.detach(bufnr)
  states[bufnr] = { client = client, offers = {}, index = 1, timer = assert(vim.uv.new_timer()) }
  local group = api.nvim_create_augroup('draftline.ghost.' .. bufnr, {})
  api.nvim_create_autocmd({ 'InsertEnter', 'TextChangedI', 'TextChangedP', 'CursorMovedI' }, {
    group = group,
    buffer = bufnr,
    callback = function()
      changed(bufnr)
    end,
  })
  api.nvim_create_autocmd({ 'InsertLeave', 'BufLeave' }, {
    group = group,
    buffer = bufnr,
    callback = function()
      M.hide(bufnr)
      states[bufnr].asked = nil
    end,
  })
end

function M.detach(bufnr)
  local state = states[bufnr]
  if not state then
    return
  end
  cancel(state)
  state.timer:stop()
  state.timer:close()
  states[bufnr] = nil
  api.nvim_del_augroup_by_name('draftline.ghost.' .. bufnr)
  if api.nvim_buf_is_valid(bufnr) then
    api.nvim_buf_clear_namespace(bufnr, namespace, 0, -1)
  end
end

---@return draftline.Offer?
function M.current(bufnr)
  local state = states[bufnr]
  local offer = state and state.offers[state.index]
  return offer and offer:rest() and offer or nil
end

function M.hide(bufnr)
  local state = states[bufnr]
  if state then
    cancel(state)
    state.timer:stop()
    clear(bufnr)
  end
end

---After `offer` was accepted in part; what is left is shown when the cursor has moved.
function M.accepted_part() end

---Another item: of those that are there, else of those that the server makes when it is asked by hand.
function M.cycle(bufnr, count)
  local state = states[bufnr]
  if not state or not wanted(bufnr) then
    return
  end
  if #state.offers < 2 or not M.current(bufnr) then
    return ask(bufnr, INVOKED)
  end
  state.index = (state.index - 1 + count) % #state.offers + 1
  show(bufnr, hint_of(state))
end

return M
